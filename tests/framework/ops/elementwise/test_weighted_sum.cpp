#include "framework/ops/elementwise/weighted_sum.h"

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/elementwise/contiguous.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class WeightedSum : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(WeightedSum);
class Contiguous : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Contiguous);

TEST_P(WeightedSum, IsRoundedOnce) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{2, 7, 33}}) {
      for (double scale : {1.0, -0.5, 3.25}) {
        const Tensor x = normal_tensor(shape, dtype, "x"), y = normal_tensor(shape, dtype, "y");
        Tape tape{testing::stream()};
        const auto found = doubles(ops::weighted_sum(tape, Variable(x), Variable(y), scale).value());
        const auto a = doubles(x), b = doubles(y);
        for (std::size_t i = 0; i < found.size(); ++i) {
          const double expected = a[i] + scale * b[i];
          // The rounding of the sum; for float32 and float64 also that of the product if it is not fused.
          const double tolerance =
              rounding_of(dtype) * std::abs(expected) +
              rounding_of(dtype == DType::float64 ? dtype : DType::float32) * std::abs(scale * b[i]);
          ASSERT_NEAR(found[i], expected, 1.01 * tolerance) << name_of(dtype);
        }
      }
    }
  }
}

TEST_P(WeightedSum, AddingZerosChangesNoBit) {
  const Tensor x = normal_tensor({4, 9}, DType::float32, "x"),
               zeros = Tensor::zeros({4, 9}, DType::float32, testing::device());
  Tape tape{testing::stream()};
  EXPECT_EQ(doubles(ops::weighted_sum(tape, Variable(x), Variable(zeros), 7).value()), doubles(x));
}

TEST_P(WeightedSum, GradientsMatchFiniteDifferences) {
  for (double scale : {1.0, 0.3}) {
    for (bool same : {false, true}) {
      const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
        return ops::weighted_sum(tape, inputs[0], same ? inputs[0] : inputs[1], scale);
      };
      std::vector<Tensor> inputs{normal_tensor({2, 3}, DType::float64, "x")};
      if (!same) inputs.push_back(normal_tensor({2, 3}, DType::float64, "y"));
      const auto result = check_gradients(function, inputs);
      EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
    }
  }
}

TEST_P(WeightedSum, RejectsMismatchedTensors) {
  Tape tape{testing::stream()};
  const Variable x(normal_tensor({2, 3}, DType::float32, "x"));
  EXPECT_THROW(ops::weighted_sum(tape, x, Variable(normal_tensor({3, 2}, DType::float32, "y"))), ContractError);
  EXPECT_THROW(ops::weighted_sum(tape, x, Variable(normal_tensor({2, 3}, DType::float64, "y"))), ContractError);
  EXPECT_THROW(ops::weighted_sum(tape, x, Variable(normal_tensor({2, 6}, DType::float32, "y").narrow(1, 0, 3))),
               ContractError);
}

TEST_P(Contiguous, CopiesOnlyColumnRanges) {
  const Tensor whole = normal_tensor({2, 3, 10}, DType::float32, "x");
  Tape tape{testing::stream()};
  EXPECT_TRUE(ops::contiguous(tape, Variable(whole)).value().shares_memory_with(whole));
  const Tensor columns = whole.narrow(2, 3, 4), copy = ops::contiguous(tape, Variable(columns)).value();
  EXPECT_TRUE(copy.is_contiguous());
  EXPECT_FALSE(copy.shares_memory_with(whole));
  EXPECT_EQ(doubles(copy), doubles(columns));
}

TEST_P(Contiguous, GradientsMatchFiniteDifferences) {
  const auto function = [](Tape& tape, const std::vector<Variable>& inputs) {
    const auto parts = tape.split_last(ops::weighted_sum(tape, inputs[0], inputs[0], 0.5), {4, 2, 4});
    return ops::weighted_sum(tape, ops::contiguous(tape, parts[0]), ops::contiguous(tape, parts[2]), 2);
  };
  const auto result = check_gradients(function, {normal_tensor({2, 3, 10}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

}  // namespace
}  // namespace furlong
