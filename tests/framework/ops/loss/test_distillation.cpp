#include "framework/ops/loss/distillation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/loss/cross_entropy.h"
#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/ops/loss/distillation_kernels.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/distillation.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class Distillation : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Distillation);
class DistillationOnGpu : public Distillation {};
FURLONG_INSTANTIATE_GPUS(DistillationOnGpu);

Tensor integers(const std::vector<std::int32_t>& values, const Shape& shape) {
  return Tensor::from(values, shape, testing::device());
}

struct Case {
  std::int64_t rows, d, teacher_d, vocabulary;
  DType dtype;
  DType teacher_dtype;
  double temperature = 1.0;
  bool with_bias = true, with_teacher_bias = true;
  double scale = 1.0;     // of the weights: larger values give sharper distributions
  double normalizer = 0;  // 0: the number of rows that count
  double d_loss = 1.0;
  std::size_t counted_of = 1;  // one target in so many counts, fewer if the targets say so
};

Tensor some_targets(const Case& c) {
  std::vector<std::int32_t> targets = integer_tensor({c.rows}, -1, c.vocabulary, "targets").to_vector<std::int32_t>();
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (row % c.counted_of != 0) targets[row] = -1;
  }
  return integers(targets, {c.rows});
}

struct Inputs {
  Tensor hidden, weight, bias, teacher_hidden, teacher_weight, teacher_bias, targets;
  explicit Inputs(const Case& c)
      : hidden(normal_tensor({c.rows, c.d}, c.dtype, "hidden")),
        weight(normal_tensor({c.vocabulary, c.d}, c.dtype, "weight", c.scale)),
        bias(normal_tensor({c.vocabulary}, c.dtype, "bias")),
        teacher_hidden(normal_tensor({c.rows, c.teacher_d}, c.teacher_dtype, "teacher hidden")),
        teacher_weight(normal_tensor({c.vocabulary, c.teacher_d}, c.teacher_dtype, "teacher weight", c.scale)),
        teacher_bias(normal_tensor({c.vocabulary}, c.teacher_dtype, "teacher bias")),
        targets(some_targets(c)) {}
};

struct Outcome {
  double loss;
  std::vector<double> d_hidden, d_weight, d_bias;
};

Outcome run(const Case& c, const Inputs& inputs) {
  const Variable hidden = Variable::leaf(inputs.hidden), weight = Variable::leaf(inputs.weight),
                 bias = Variable::leaf(inputs.bias);
  weight.slot()->dtype = bias.slot()->dtype = accumulate_dtype(c.dtype);  // as in the parameter store
  Tape tape{testing::stream()};
  ops::DistillationOptions options{.temperature = c.temperature};
  if (c.normalizer > 0) options.normalizer = c.normalizer;
  const Variable loss = ops::distillation(tape, hidden, weight, c.with_bias ? &bias : nullptr, inputs.teacher_hidden,
                                          inputs.teacher_weight, c.with_teacher_bias ? &inputs.teacher_bias : nullptr,
                                          inputs.targets, options);
  tape.backward(loss, c.d_loss);
  return {doubles(loss.value())[0], doubles(hidden.gradient()), doubles(weight.gradient()),
          c.with_bias ? doubles(bias.gradient()) : std::vector<double>{}};
}

reference::Distillation expected(const Case& c, const Inputs& inputs) {
  const auto values = [](const Tensor& tensor, bool wanted) {
    return wanted ? doubles(tensor) : std::vector<double>{};
  };
  const ClassifierValues student{doubles(inputs.hidden), doubles(inputs.weight), values(inputs.bias, c.with_bias),
                                 static_cast<std::size_t>(c.d)},
      teacher{doubles(inputs.teacher_hidden), doubles(inputs.teacher_weight),
              values(inputs.teacher_bias, c.with_teacher_bias), static_cast<std::size_t>(c.teacher_d)};
  auto result =
      reference::distillation(student, teacher, inputs.targets.to_vector<std::int32_t>(), c.temperature, c.normalizer);
  for (auto* gradient : {&result.d_hidden, &result.d_weight, &result.d_bias}) {
    for (double& value : *gradient) value *= c.d_loss;
  }
  return result;
}

/// Absolute error bound of a logit: its products are summed in float32. All other errors follow from it.
double logit_error(const Case& c) {
  return 4 * rounding_of(accumulate_dtype(c.dtype)) * c.scale * static_cast<double>(std::max(c.d, c.teacher_d) + 16);
}

void compare(const Case& c) {
  SCOPED_TRACE(fmt::format("{} rows, d {} and {}, vocabulary {}, {} and {}, temperature {}", c.rows, c.d, c.teacher_d,
                           c.vocabulary, name_of(c.dtype), name_of(c.teacher_dtype), c.temperature));
  const Inputs inputs(c);
  const auto want = expected(c, inputs);
  const Outcome got = run(c, inputs);
  // |d loss / d logit| is at most T for student and teacher (T² of the loss by 1/T of the logits).
  const double error = 2 * c.temperature * logit_error(c);
  EXPECT_NEAR(got.loss, want.loss, error + rounding_of(accumulate_dtype(c.dtype)) * 4 * std::abs(want.loss));
  // bfloat16: gradients of the logits are rounded to 2^-8 before the products, d_hidden also after them, and once more
  // after scaling.
  const double gradient_error = c.dtype == DType::bfloat16 ? 3 * 0x1p-8 : 6 * logit_error(c);
  EXPECT_LE(relative_difference(got.d_hidden, want.d_hidden), gradient_error);
  EXPECT_LE(relative_difference(got.d_weight, want.d_weight), gradient_error);
  if (c.with_bias) {
    EXPECT_LE(relative_difference(got.d_bias, want.d_bias), gradient_error);
  }
}

/// A GPU's rows of logits may be padded, if student, teacher and gradients have the same stride. The results have the
/// same bits as without padding.
TEST_P(DistillationOnGpu, RowPaddingOfLogitsChangesNoBit) {
  constexpr std::int64_t rows = 5, vocabulary = 50;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const DType sum_dtype = accumulate_dtype(dtype);
    const Stream stream = testing::stream();
    const auto with_gap = [&](const Tensor& values, std::int64_t gap) {
      const Tensor wide = Tensor::zeros({rows, vocabulary + gap}, values.dtype(), testing::device());
      ops::fill(stream, wide, 77);
      const Tensor view = wide.narrow(1, 0, vocabulary);
      for (std::int64_t row = 0; row < rows; ++row) view.narrow(0, row, 1).copy_from(values.narrow(0, row, 1));
      return std::pair(view, wide.narrow(1, vocabulary, gap));
    };
    const Tensor student = normal_tensor({rows, vocabulary}, sum_dtype, "student"),
                 teacher = normal_tensor({rows, vocabulary}, sum_dtype, "teacher");
    const Tensor targets = integers({1, -1, 0, 49, 3}, {rows}), inverse = tensor_of({0.25}, {1}, sum_dtype);
    const Tensor nothing = Tensor::zeros({rows, vocabulary}, dtype, testing::device());
    std::vector<double> losses, d_logits;
    for (const std::int64_t gap : {0, 6}) {
      const auto [student_rows, student_gap] = with_gap(student, gap);
      const auto [teacher_rows, teacher_gap] = with_gap(teacher, gap);
      const auto [d_rows, d_gap] = with_gap(nothing, gap);
      const Tensor row_losses = Tensor::zeros({rows}, sum_dtype, testing::device());
      ops::distillation_rows_gpu(stream, {student_rows, teacher_rows, targets, 0, 2.0, inverse, row_losses, d_rows});
      if (gap == 0) {
        losses = doubles(row_losses);
        d_logits = doubles(d_rows);
        EXPECT_THAT(losses, ::testing::Contains(::testing::Gt(0.0)));
      }
      EXPECT_EQ(doubles(row_losses), losses);
      EXPECT_EQ(doubles(d_rows), d_logits);
      for (const Tensor& between : {student_gap, teacher_gap, d_gap})
        EXPECT_THAT(doubles(between), ::testing::Each(77.0));
    }
  }
}

TEST_P(Distillation, MatchesTheReference) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    compare({.rows = 2, .d = 1, .teacher_d = 1, .vocabulary = 2, .dtype = dtype, .teacher_dtype = dtype});
    compare({.rows = 7,
             .d = 5,
             .teacher_d = 9,
             .vocabulary = 3,
             .dtype = dtype,
             .teacher_dtype = dtype,
             .temperature = 2,
             .d_loss = 0.37});
    compare({.rows = 65,
             .d = 33,
             .teacher_d = 17,
             .vocabulary = 257,
             .dtype = dtype,
             .teacher_dtype = dtype,
             .scale = 0.3});
    compare({.rows = 40,
             .d = 16,
             .teacher_d = 8,
             .vocabulary = 100,
             .dtype = dtype,
             .teacher_dtype = dtype,
             .temperature = 0.5,
             .with_bias = false,
             .normalizer = 123.0,
             .d_loss = -2.0});
    compare({.rows = 9,
             .d = 4,
             .teacher_d = 4,
             .vocabulary = 31,
             .dtype = dtype,
             .teacher_dtype = dtype,
             .temperature = 8,
             .with_teacher_bias = false});
  }
}

TEST_P(Distillation, AcceptsTeacherOfAnotherDtype) {
  compare({.rows = 12,
           .d = 6,
           .teacher_d = 10,
           .vocabulary = 50,
           .dtype = DType::float32,
           .teacher_dtype = DType::bfloat16});
  compare({.rows = 12,
           .d = 6,
           .teacher_d = 10,
           .vocabulary = 50,
           .dtype = DType::bfloat16,
           .teacher_dtype = DType::float32});
}

TEST_P(Distillation, AgreesAcrossChunksOfRows) {
  // 2^21 logits are stored at a time: 523 rows of 4001 make two chunks, of 262 and 261 rows (on CUDA one).
  const std::int64_t rows = 523;
  for (DType dtype : {DType::float32, DType::bfloat16})
    compare({.rows = rows,
             .d = 3,
             .teacher_d = 2,
             .vocabulary = 4001,
             .dtype = dtype,
             .teacher_dtype = dtype,
             .temperature = 2});
}

// On the CPU these compute a third or a seventh of the rows; the last in three chunks.
TEST_P(Distillation, IgnoresMostRows) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    Case c{.rows = 65, .d = 13, .teacher_d = 9, .vocabulary = 257, .dtype = dtype, .teacher_dtype = dtype};
    c.d_loss = 0.37;
    c.counted_of = 7;
    compare(c);
    c.counted_of = 3;
    c.with_bias = c.with_teacher_bias = false;
    compare(c);
  }
  const DType dtype = DType::float32;
  Case c{.rows = 4003, .d = 3, .teacher_d = 2, .vocabulary = 4001, .dtype = dtype, .teacher_dtype = dtype};
  c.counted_of = 3;
  compare(c);
}

TEST_P(Distillation, StaysFiniteForLogitsOfThousands) {
  for (DType dtype : {DType::float32, DType::bfloat16})
    compare(
        {.rows = 9, .d = 8, .teacher_d = 8, .vocabulary = 50, .dtype = dtype, .teacher_dtype = dtype, .scale = 1000.0});
}

TEST_P(Distillation, GradientsMatchFiniteDifferences) {
  std::vector<std::tuple<int, int, int>> sizes{{1, 1, 2}, {5, 3, 7}};
  if (!testing::on_simulator()) sizes.emplace_back(9, 6, 33);
  for (const auto& [rows, d, vocabulary] : sizes) {
    std::vector<std::int32_t> numbers = integer_tensor({rows}, -1, vocabulary, "targets").to_vector<std::int32_t>();
    numbers[0] = 1;  // at least one row counts
    const Tensor targets = integers(numbers, {rows});
    const Tensor teacher_hidden = normal_tensor({rows, 4}, DType::float64, "teacher hidden"),
                 teacher_weight = normal_tensor({vocabulary, 4}, DType::float64, "teacher weight");
    const std::vector<Tensor> inputs{normal_tensor({rows, d}, DType::float64, "hidden"),
                                     normal_tensor({vocabulary, d}, DType::float64, "weight"),
                                     normal_tensor({vocabulary}, DType::float64, "bias")};
    const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
      return ops::distillation(tape, v[0], v[1], &v[2], teacher_hidden, teacher_weight, nullptr, targets,
                               {.temperature = 1.7});
    };
    auto result = check_gradients(function, inputs);
    EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
    const auto normalized = [&](Tape& tape, const std::vector<Variable>& v) {
      return ops::distillation(tape, v[0], v[1], nullptr, teacher_hidden, teacher_weight, nullptr, targets,
                               {.normalizer = 17.0});
    };
    result = check_gradients(normalized, {inputs[0], inputs[1]});
    EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
  }
}

TEST_P(Distillation, IsZeroForEqualStudentAndTeacher) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    Case c{.rows = 11,
           .d = 6,
           .teacher_d = 6,
           .vocabulary = 300,
           .dtype = dtype,
           .teacher_dtype = dtype,
           .temperature = 3};
    Inputs inputs(c);
    inputs.teacher_hidden = inputs.hidden;
    inputs.teacher_weight = inputs.weight;
    inputs.teacher_bias = inputs.bias;
    const Outcome got = run(c, inputs);
    EXPECT_EQ(got.loss, 0);
    for (const auto& gradient : {got.d_hidden, got.d_weight, got.d_bias}) EXPECT_THAT(gradient, ::testing::Each(0.0));
  }
}

/// A teacher with a nearly one-hot distribution gives the loss of the targets themselves: cross_entropy.
TEST_P(Distillation, EqualsCrossEntropyForOneHotTeacher) {
  constexpr std::int64_t rows = 6, d = 5, vocabulary = 40;
  const std::vector<std::int32_t> numbers{3, 39, 0, 17, -1, 17};
  std::vector<double> certain(rows * vocabulary, 0);
  for (std::size_t r = 0; r < numbers.size(); ++r) {
    if (numbers[r] >= 0) certain[r * vocabulary + static_cast<std::size_t>(numbers[r])] = 1000;
  }
  std::vector<double> identity(vocabulary * vocabulary, 0);
  for (std::size_t i = 0; i < vocabulary; ++i) identity[i * vocabulary + i] = 1;
  const Tensor teacher_hidden = tensor_of(certain, {rows, vocabulary}, DType::float64),
               teacher_weight = tensor_of(identity, {vocabulary, vocabulary}, DType::float64);
  const Tensor hidden = normal_tensor({rows, d}, DType::float64, "hidden"), targets = integers(numbers, {rows});
  const Variable weight(normal_tensor({vocabulary, d}, DType::float64, "weight"));
  Tape tape{testing::stream()};
  const Variable leaf = Variable::leaf(hidden), other = Variable::leaf(hidden);
  const auto distilled_from = [&](const Variable& student) {
    return ops::distillation(tape, student, weight, nullptr, teacher_hidden, teacher_weight, nullptr, targets);
  };
  const Variable distilled = distilled_from(leaf),
                 trained = ops::cross_entropy(tape, other, weight, nullptr, targets).loss;
  EXPECT_NEAR(doubles(distilled.value())[0], doubles(trained.value())[0], 1e-14);
  const Variable constant = distilled_from(Variable(hidden));  // needs no gradients
  EXPECT_FALSE(constant.requires_gradient());
  EXPECT_EQ(doubles(constant.value()), doubles(distilled.value()));
  const Tensor one = tensor_of({1}, Shape{}, DType::float64);
  tape.backward({distilled, trained}, {one, one});
  EXPECT_LE(relative_difference(leaf.gradient(), doubles(other.gradient())), 1e-14);
}

TEST_P(Distillation, IsZeroWhenAllRowsAreIgnored) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Case c{.rows = 5, .d = 4, .teacher_d = 3, .vocabulary = 9, .dtype = dtype, .teacher_dtype = dtype};
    Inputs inputs(c);
    inputs.targets = integers(std::vector<std::int32_t>(5, -1), {5});
    // Ignored rows may hold any value, which must not affect the gradients.
    ops::fill(testing::stream(), inputs.hidden.narrow(0, 2, 1), 1e30);
    ops::fill(testing::stream(), inputs.teacher_hidden.narrow(0, 1, 1), 1e30);
    const Outcome got = run(c, inputs);
    EXPECT_EQ(got.loss, 0);
    for (const auto& gradient : {got.d_hidden, got.d_weight, got.d_bias}) EXPECT_THAT(gradient, ::testing::Each(0.0));
  }
}

TEST_P(Distillation, AcceptsTargetsOfAColumnRange) {
  const Tensor tokens = integer_tensor({3, 9}, -1, 11, "tokens"), targets = tokens.narrow(1, 1, 8);
  const Tensor hidden = normal_tensor({3, 8, 5}, DType::float32, "hidden"),
               weight = normal_tensor({11, 5}, DType::float32, "weight");
  const Tensor teacher_hidden = normal_tensor({3, 8, 4}, DType::float32, "teacher hidden"),
               teacher_weight = normal_tensor({11, 4}, DType::float32, "teacher weight");
  Tape tape{testing::stream()};
  const Variable leaf = Variable::leaf(hidden);
  const Variable loss =
      ops::distillation(tape, leaf, Variable(weight), nullptr, teacher_hidden, teacher_weight, nullptr, targets);
  tape.backward(loss);
  const auto want = reference::distillation({doubles(hidden), doubles(weight), {}, 5},
                                            {doubles(teacher_hidden), doubles(teacher_weight), {}, 4},
                                            targets.to_vector<std::int32_t>(), 1, 0);
  EXPECT_NEAR(doubles(loss.value())[0], want.loss, 4e-6);
  EXPECT_EQ(leaf.gradient().shape(), hidden.shape());
  EXPECT_LE(relative_difference(leaf.gradient(), want.d_hidden), 4e-6);
}

TEST_P(Distillation, AcceptsDeviceNormalizer) {
  const Case c{
      .rows = 8, .d = 4, .teacher_d = 4, .vocabulary = 12, .dtype = DType::float64, .teacher_dtype = DType::float64};
  const Inputs inputs(c);
  const auto loss_with = [&](const ops::DistillationOptions& options) {
    Tape tape{testing::stream()};
    return doubles(ops::distillation(tape, Variable(inputs.hidden), Variable(inputs.weight), nullptr,
                                     inputs.teacher_hidden, inputs.teacher_weight, nullptr, inputs.targets, options)
                       .value())[0];
  };
  const Tensor given = tensor_of({40}, {1}, DType::float64);
  EXPECT_EQ(loss_with({.normalizer = 3.0, .device_normalizer = given}), loss_with({.normalizer = 40.0}));
  EXPECT_NEAR(loss_with({.normalizer = 3.0}) * 3, loss_with({.normalizer = 40.0}) * 40, 1e-14);
}

/// Rows of logits given by the biases alone, with one value of student or teacher changed; all rows are equal.
TEST_P(Distillation, HandlesInfiniteLogits) {
  constexpr std::int64_t vocabulary = 600;
  std::vector<double> bias(vocabulary, -INFINITY), teacher(vocabulary, -INFINITY);
  for (std::size_t i : {0, 5, 6, 599}) {
    bias[i] = static_cast<double>(i % 4);
    teacher[i] = static_cast<double>(i % 3);
  }
  struct Change {
    std::vector<double>& side;
    std::size_t place;
    double value;
  };
  const auto loss_with = [&](const Change& change, Tensor* d_bias = nullptr) {
    const double before = std::exchange(change.side[change.place], change.value);
    Tape tape{testing::stream()};
    const Tensor hidden = Tensor::zeros({1, 2}, DType::float32, testing::device()),
                 weight = normal_tensor({vocabulary, 2}, DType::float32, "w");
    const Variable leaf = Variable::leaf(tensor_of(bias, {vocabulary}, DType::float32));
    const Tensor teacher_bias = tensor_of(teacher, {vocabulary}, DType::float32);
    const Variable loss = ops::distillation(tape, Variable(hidden), Variable(weight), &leaf, hidden, weight,
                                            &teacher_bias, integers({0}, {1}), {.temperature = 2});
    tape.backward(loss);
    if (d_bias) *d_bias = leaf.gradient();
    change.side[change.place] = before;
    return doubles(loss.value())[0];
  };
  // A token with zero probability on both sides adds nothing.
  Tensor d_bias;
  std::vector<double> few, few_teacher;
  for (std::size_t i : {0, 5, 6, 599}) {
    few.push_back(bias[i]);
    few_teacher.push_back(teacher[i]);
  }
  const auto q = log_probabilities(few, 2), p = log_probabilities(few_teacher, 2);
  double want = 0;
  for (std::size_t i = 0; i < 4; ++i) want += 4 * std::exp(p[i]) * (p[i] - q[i]);
  EXPECT_NEAR(loss_with({bias, 1, -INFINITY}, &d_bias), want, 1e-6);
  const auto gradient = doubles(d_bias);
  for (std::size_t i = 0, k = 0; i < gradient.size(); ++i) {
    const bool finite = !std::isinf(bias[i]);
    EXPECT_NEAR(gradient[i], finite ? 2 * (std::exp(q[k]) - std::exp(p[k])) : 0, 1e-6) << i;
    k += finite;
  }
  EXPECT_EQ(loss_with({bias, 5, -INFINITY}), INFINITY)
      << "a token of the teacher must not have zero student probability";
  EXPECT_TRUE(std::isfinite(loss_with({teacher, 5, -INFINITY})));
  for (std::vector<double>* side : {&bias, &teacher}) {
    EXPECT_TRUE(std::isnan(loss_with({*side, 300, NAN})));
    EXPECT_TRUE(std::isnan(loss_with({*side, 300, INFINITY})));
  }
}

TEST_P(Distillation, TargetOutsideTheVocabularyIsDetected) {
  const Case c{
      .rows = 3, .d = 4, .teacher_d = 4, .vocabulary = 5, .dtype = DType::float32, .teacher_dtype = DType::float32};
  Inputs inputs(c);
  inputs.targets = integers({1, 5, -1}, {3});
  if (testing::on_gpu()) {
    EXPECT_TRUE(std::isnan(run(c, inputs).loss));
  } else {
    EXPECT_THROW(run(c, inputs), ContractError);
  }
}

TEST_P(Distillation, ZeroRowsGiveZeroLoss) {
  Tape tape{testing::stream()};
  const Tensor none = Tensor::empty({0, 3}, DType::float32, testing::device()),
               weight = normal_tensor({4, 3}, DType::float32, "weight");
  const Variable leaf = Variable::leaf(weight);
  const Variable loss =
      ops::distillation(tape, Variable(none), leaf, nullptr, none, weight, nullptr, integers({}, {0}));
  EXPECT_EQ(doubles(loss.value())[0], 0);
  tape.backward(loss);
  EXPECT_EQ(doubles(leaf.gradient()), std::vector<double>(12, 0));
}

TEST(DistillationOnCpu, BitsDoNotDependOnThreadCount) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Case c{.rows = 600, .d = 24, .teacher_d = 16, .vocabulary = 300, .dtype = dtype, .teacher_dtype = dtype};
    const Inputs inputs(c);
    const auto all = [&] {
      const Outcome got = run(c, inputs);
      return std::vector{std::vector{got.loss}, got.d_hidden, got.d_weight, got.d_bias};
    };
    EXPECT_EQ(with_threads(1, all), with_threads(5, all));
  }
}

}  // namespace
}  // namespace furlong
