#include "framework/ops/dense/head_linear.h"

#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/elementwise/concatenate.h"
#include "tests/reference/head_linear.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class HeadLinear : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(HeadLinear);

struct Sizes {
  std::int64_t batch, n, n_heads, d_out, d;
};
const std::vector<Sizes> all_sizes{
    {1, 1, 1, 1, 1}, {2, 3, 2, 5, 3}, {1, 70, 3, 16, 16}, {3, 5, 4, 7, 33}, {2, 17, 8, 64, 64}};

std::vector<double> expected(const Tensor& x, const Tensor& weight, const Sizes& s) {
  return reference::head_linear(doubles(x), doubles(weight), static_cast<std::size_t>(s.batch * s.n),
                                static_cast<std::size_t>(s.n_heads), static_cast<std::size_t>(s.d_out),
                                static_cast<std::size_t>(s.d));
}

TEST_P(HeadLinear, MatchesTheReference) {
  for (const Sizes& s : all_sizes) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const Tensor x = normal_tensor({s.batch, s.n, s.n_heads * s.d}, dtype, "x");
      const Tensor weight = normal_tensor({s.n_heads, s.d_out, s.d}, dtype, "weight");
      Tape tape{testing::stream()};
      const Variable y = ops::head_linear(tape, Variable(x), Variable(weight), s.n_heads);
      ASSERT_EQ(y.shape(), Shape({s.batch, s.n, s.n_heads * s.d_out}));
      // One rounding for each of d terms; bfloat16 sums are float32, rounded once at the end.
      const double tolerance = dtype == DType::bfloat16 ? 0x1p-8 * 1.01 : static_cast<double>(s.d) * rounding_of(dtype);
      EXPECT_LE(relative_difference(y.value(), expected(x, weight, s)), tolerance)
          << s.n << " " << s.d << " " << name_of(dtype);
    }
  }
}

TEST_P(HeadLinear, ColumnRangeGivesTheSameBits) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const Tensor fused = normal_tensor({2, 9, 40}, dtype, "fused"), x = fused.narrow(2, 7, 12);
    const Tensor weight = normal_tensor({3, 5, 4}, dtype, "weight"), copy = tensor_of(doubles(x), x.shape(), dtype);
    Tape tape{testing::stream()};
    EXPECT_EQ(doubles(ops::head_linear(tape, Variable(x), Variable(weight), 3).value()),
              doubles(ops::head_linear(tape, Variable(copy), Variable(weight), 3).value()));
  }
}

TEST_P(HeadLinear, GradientsMatchFiniteDifferences) {
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1}, Sizes{2, 3, 2, 5, 3}, Sizes{1, 4, 3, 2, 7}}) {
    const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
      return ops::head_linear(tape, inputs[0], inputs[1], s.n_heads);
    };
    const auto result = check_gradients(function, {normal_tensor({s.batch, s.n, s.n_heads * s.d}, DType::float64, "x"),
                                                   normal_tensor({s.n_heads, s.d_out, s.d}, DType::float64, "weight")});
    EXPECT_LE(result.worst_relative_error, 1e-10) << result.where;
  }
}

/// x is a column range that is used twice, and the weight is used twice: both gradients are sums, and x's is part of
/// the whole's.
TEST_P(HeadLinear, AccumulatesGradientsOfColumnRanges) {
  const auto function = [](Tape& tape, const std::vector<Variable>& inputs) {
    const Variable whole = ops::head_linear(tape, inputs[0], inputs[1], 2);
    const Variable range = tape.split_last(whole, {2, 6, 4})[1];
    const Variable a = ops::head_linear(tape, range, inputs[2], 2), b = ops::head_linear(tape, range, inputs[3], 2);
    return ops::concatenate_last(tape, {a, ops::head_linear(tape, b, inputs[2], 2)});
  };
  const auto result = check_gradients(
      function, {normal_tensor({2, 3, 8}, DType::float64, "x"), normal_tensor({2, 6, 4}, DType::float64, "w0"),
                 normal_tensor({2, 3, 3}, DType::float64, "w1"), normal_tensor({2, 3, 3}, DType::float64, "w2")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST_P(HeadLinear, ConstantsReceiveNoGradient) {
  const Tensor x = normal_tensor({2, 3, 4}, DType::float32, "x"),
               weight = normal_tensor({2, 2, 2}, DType::float32, "weight");
  const Tensor d_y = normal_tensor({2, 3, 4}, DType::float32, "d_y");
  const auto gradients = [&](const Variable& input, const Variable& matrix) {
    Tape tape{testing::stream()};
    const Variable y = ops::head_linear(tape, input, matrix, 2);
    tape.backward({y}, {d_y});
    return std::pair{input.gradient(), matrix.gradient()};
  };
  const auto both = gradients(Variable::leaf(x), Variable::leaf(weight));
  const auto of_x = gradients(Variable::leaf(x), Variable(weight)),
             of_weight = gradients(Variable(x), Variable::leaf(weight));
  EXPECT_FALSE(of_x.second.defined());
  EXPECT_FALSE(of_weight.first.defined());
  EXPECT_EQ(doubles(of_x.first), doubles(both.first));
  EXPECT_EQ(doubles(of_weight.second), doubles(both.second));
}

TEST_P(HeadLinear, Bfloat16WeightGradientIsFloat32) {
  const Tensor x = normal_tensor({2, 50, 6}, DType::bfloat16, "x"),
               d_y = normal_tensor({2, 50, 4}, DType::bfloat16, "d_y");
  const Tensor values = normal_tensor({2, 2, 3}, DType::bfloat16, "weight");
  const auto gradient = [&](DType dtype) {
    const Variable weight = Variable::leaf(tensor_of(doubles(values), values.shape(), dtype));
    weight.slot()->dtype = accumulate_dtype(dtype);
    Tape tape{testing::stream()};
    const Variable y = ops::head_linear(tape, Variable(tensor_of(doubles(x), x.shape(), dtype)), weight, 2);
    tape.backward({y}, {tensor_of(doubles(d_y), d_y.shape(), dtype)});
    return doubles(weight.gradient());
  };
  // Products of two 8-bit significands are exact in float32; sums of 100 terms.
  EXPECT_LE(relative_difference(gradient(DType::bfloat16), gradient(DType::float64)), 1e-6);
}

TEST(HeadLinearOnCpu, BitsDoNotDependOnThreadCount) {
  const auto run = [] {
    const Variable x = Variable::leaf(normal_tensor({3, 41, 12}, DType::float64, "x"));
    const Variable weight = Variable::leaf(normal_tensor({3, 5, 4}, DType::float64, "weight"));
    Tape tape{testing::stream()};
    const Variable y = ops::head_linear(tape, x, weight, 3);
    tape.backward({y}, {normal_tensor(y.shape(), DType::float64, "d_y")});
    return std::vector{doubles(y.value()), doubles(x.gradient()), doubles(weight.gradient())};
  };
  EXPECT_EQ(with_threads(1, run), with_threads(5, run));
}

TEST(HeadLinearOnCpu, RejectsMismatchedShapes) {
  Tape tape{testing::stream()};
  const auto tensor = [](const Shape& shape, DType dtype = DType::float32) {
    return Variable(normal_tensor(shape, dtype, "t"));
  };
  const Variable x = tensor({2, 3, 6});
  EXPECT_THROW(ops::head_linear(tape, x, tensor({3, 4, 2}), 2), ContractError);
  EXPECT_THROW(ops::head_linear(tape, x, tensor({3, 4, 3}), 3), ContractError);
  EXPECT_THROW(ops::head_linear(tape, x, tensor({4, 2}), 3), ContractError);
  EXPECT_THROW(ops::head_linear(tape, x, tensor({3, 4, 2}, DType::bfloat16), 3), ContractError);
  EXPECT_THROW(ops::head_linear(tape, tensor({6, 6}), tensor({3, 4, 2}), 3), ContractError);
}

TEST(HeadLinearOnCpu, ShapeOnlyRunsTheSameSteps) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  const Variable fused = Variable::leaf(Tensor::empty({2, 7, 24}, DType::bfloat16, device)),
                 weight = Variable::leaf(Tensor::empty({2, 3, 4}, DType::bfloat16, device));
  const Variable y = ops::head_linear(tape, tape.split_last(fused, {8, 16})[0], weight, 2);
  tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
  EXPECT_EQ(fused.gradient().shape(), fused.shape());
  EXPECT_EQ(weight.gradient().shape(), weight.shape());
}

}  // namespace
}  // namespace furlong
