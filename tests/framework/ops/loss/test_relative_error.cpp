#include "framework/ops/loss/relative_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class RelativeError : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(RelativeError);

struct Expected {
  double loss;
  std::vector<double> d_x;
};

Expected expected(const Tensor& x_, const Tensor& reference_, const std::vector<std::int32_t>& mask, double d_loss) {
  const std::vector<double> x = doubles(x_), reference = doubles(reference_);
  const std::size_t d = static_cast<std::size_t>(x_.extent(-1));
  const auto counts = [&](std::size_t i) { return mask.empty() || mask[i / d] != 0; };
  long double error = 0, size = 0;  // so that the reference has no rounding error
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!counts(i)) continue;
    const long double difference = static_cast<long double>(x[i]) - reference[i];
    error += difference * difference;
    size += static_cast<long double>(reference[i]) * reference[i];
  }
  Expected result{static_cast<double>(error / size), std::vector<double>(x.size())};
  for (std::size_t i = 0; i < x.size(); ++i)
    result.d_x[i] =
        counts(i) ? static_cast<double>(d_loss * 2 * (static_cast<long double>(x[i]) - reference[i]) / size) : 0;
  return result;
}

void compare(const Tensor& x, const Tensor& reference, const Tensor* mask, double d_loss) {
  SCOPED_TRACE(fmt::format("{} {}", name_of(x.dtype()), x.shape().text()));
  const Expected want =
      expected(x, reference, mask ? mask->to_vector<std::int32_t>() : std::vector<std::int32_t>{}, d_loss);
  Tape tape{testing::stream()};
  const Variable leaf = Variable::leaf(x);
  const Variable loss = ops::relative_error(tape, leaf, reference, mask);
  // Squares of one row or chunk are summed in float32, the rest in double.
  const double rounding = rounding_of(accumulate_dtype(x.dtype()));
  EXPECT_NEAR(doubles(loss.value())[0], want.loss, 16 * rounding * want.loss);
  tape.backward(loss, d_loss);
  EXPECT_LE(relative_difference(leaf.gradient(), want.d_x),
            x.dtype() == DType::bfloat16 ? rounding_of(DType::bfloat16) : 4 * rounding);
}

TEST_P(RelativeError, MatchesTheReference) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const Shape& shape : {Shape{1}, Shape{1, 1}, Shape{7, 3}, Shape{5, 8}, Shape{3, 11, 33}, Shape{2, 3, 4, 64}}) {
      const Tensor x = normal_tensor(shape, dtype, "x"), reference = normal_tensor(shape, dtype, "reference", 2.0);
      compare(x, reference, nullptr, 1.0);
      std::vector<std::int32_t> numbers = integer_tensor({shape.rows()}, 0, 2, "mask").to_vector<std::int32_t>();
      numbers[0] = 7;  // anything but 0 counts
      const Tensor mask = Tensor::from(numbers, {shape.rows()}, testing::device());
      compare(x, reference, &mask, -0.37);
    }
  }
}

TEST_P(RelativeError, SpansSeveralBlocks) {
  const Shape shape{testing::on_simulator() ? 130 : 5000, 67};
  for (DType dtype : {DType::float32, DType::bfloat16})
    compare(normal_tensor(shape, dtype, "x"), normal_tensor(shape, dtype, "reference"), nullptr, 1.0);
}

/// Small differences of large values, as between a student and its teacher late in distillation.
TEST_P(RelativeError, IsExactForSmallErrors) {
  const Tensor reference = normal_tensor({40, 32}, DType::float32, "reference", 100);
  std::vector<double> values = doubles(reference);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 2 ? 1 + 0x1p-20 : 1;
  compare(tensor_of(values, {40, 32}, DType::float32), reference, nullptr, 1.0);
}

TEST_P(RelativeError, GradientsMatchFiniteDifferences) {
  const Tensor reference = normal_tensor({2, 3, 5}, DType::float64, "reference");
  const Tensor mask = Tensor::from(std::vector<std::int32_t>{1, 0, 1, 1, 1, 0}, {2, 3}, testing::device());
  const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
    return ops::relative_error(tape, v[0], reference, &mask);
  };
  const auto result = check_gradients(function, {normal_tensor({2, 3, 5}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
}

/// x is one column range of a wider value whose other range has a gradient too. The reference and the mask are parts of
/// larger tensors, and the loss is computed twice.
TEST_P(RelativeError, AcceptsViewsAndAccumulatesGradients) {
  const Tensor all = normal_tensor({4, 6, 9}, DType::float64, "all"), reference = all.narrow(2, 2, 5);
  const Tensor mask = integer_tensor({4, 8}, 0, 2, "mask").narrow(1, 1, 6);
  const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
    // A value can be split once; the function is called twice.
    const Variable copy = tape.record_one("copy", {v[0]}, v[0].value(), {},
                                          [](BackwardContext& context) { context.pass(0, context.d_output()); });
    const auto parts = tape.split_last(copy, {5, 3});
    const Variable a = ops::relative_error(tape, parts[0], reference, &mask),
                   b = ops::relative_error(tape, parts[0], reference),
                   c = ops::relative_error(tape, parts[1], all.narrow(2, 0, 3));
    const Tensor sum = Tensor::zeros(Shape{}, DType::float64, testing::device());
    for (const Variable* part : {&a, &b, &c}) ops::add(tape.stream(), sum, part->value(), GradientMode::accumulate);
    return tape.record_one("sum", {a, b, c}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  const auto result = check_gradients(function, {normal_tensor({4, 6, 8}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
}

TEST_P(RelativeError, IgnoredRowsMayHoldAnyValue) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor x = normal_tensor({3, 10}, dtype, "x"), reference = normal_tensor({3, 10}, dtype, "reference");
    ops::fill(testing::stream(), x.narrow(0, 1, 1), NAN);
    ops::fill(testing::stream(), reference.narrow(0, 1, 1), INFINITY);
    const Tensor mask = Tensor::from(std::vector<std::int32_t>{1, 0, 1}, {3}, testing::device());
    Tape tape{testing::stream()};
    const Variable leaf = Variable::leaf(x);
    const Variable loss = ops::relative_error(tape, leaf, reference, &mask);
    EXPECT_TRUE(std::isfinite(doubles(loss.value())[0]));
    tape.backward(loss);
    const auto d_x = doubles(leaf.gradient());
    for (std::size_t i = 0; i < d_x.size(); ++i)
      EXPECT_TRUE(i / 10 == 1 ? d_x[i] == 0 : std::isfinite(d_x[i]) && d_x[i] != 0) << i;
  }
}

TEST_P(RelativeError, IsZeroWithoutRowsOrReference) {
  const Tensor x = normal_tensor({3, 4}, DType::float32, "x"),
               zero = Tensor::zeros({3, 4}, DType::float32, testing::device());
  const Tensor nobody = Tensor::zeros({3}, DType::int32, testing::device());
  const Tensor none = Tensor::empty({0, 4}, DType::float32, testing::device());
  const auto check_zero = [](const Tensor& value, const Tensor& reference, const Tensor* mask) {
    Tape tape{testing::stream()};
    const Variable leaf = Variable::leaf(value);
    const Variable loss = ops::relative_error(tape, leaf, reference, mask);
    EXPECT_EQ(doubles(loss.value())[0], 0);
    tape.backward(loss);
    EXPECT_THAT(doubles(leaf.gradient()), ::testing::Each(0.0));
  };
  check_zero(x, zero, nullptr);
  check_zero(x, x, &nobody);
  check_zero(none, none, nullptr);
}

TEST_P(RelativeError, RoundsReferenceToDtypeOfInput) {
  const Tensor x = normal_tensor({4, 9}, DType::bfloat16, "x"),
               reference = normal_tensor({4, 9}, DType::float32, "reference");
  const Tensor rounded = tensor_of(doubles(reference), {4, 9}, DType::bfloat16);
  Tape tape{testing::stream()};
  EXPECT_EQ(doubles(ops::relative_error(tape, Variable(x), reference).value()),
            doubles(ops::relative_error(tape, Variable(x), rounded).value()));
}

TEST(RelativeErrorOnCpu, BitsDoNotDependOnThreadCount) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor x = normal_tensor({900, 130}, dtype, "x"), reference = normal_tensor({900, 130}, dtype, "reference");
    const auto all = [&] {
      Tape tape{testing::stream()};
      const Variable leaf = Variable::leaf(x);
      const Variable loss = ops::relative_error(tape, leaf, reference);
      tape.backward(loss);
      return std::vector{doubles(loss.value()), doubles(leaf.gradient())};
    };
    EXPECT_EQ(with_threads(1, all), with_threads(5, all));
  }
}

TEST(RelativeErrorOnCpu, RejectsMismatchedArguments) {
  Tape tape{testing::stream()};
  const Tensor x = normal_tensor({2, 3}, DType::float32, "x");
  const auto with = [&](const Tensor& reference, const Tensor* mask = nullptr) {
    ops::relative_error(tape, Variable(x), reference, mask);
  };
  EXPECT_NO_THROW(with(x));
  EXPECT_THROW(with(normal_tensor({3, 2}, DType::float32, "r")), ContractError);
  EXPECT_THROW(with(normal_tensor({2, 3}, DType::float64, "r")), ContractError);
  EXPECT_THROW(with(normal_tensor({3, 2}, DType::float32, "r").permute({1, 0})), ContractError);
  const Tensor mask = Tensor::zeros({3}, DType::int32), floats = Tensor::zeros({2}, DType::float32);
  EXPECT_THROW(with(x, &mask), ContractError);
  EXPECT_THROW(with(x, &floats), ContractError);
}

}  // namespace
}  // namespace furlong
