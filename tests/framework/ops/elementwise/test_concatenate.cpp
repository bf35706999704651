#include "framework/ops/elementwise/concatenate.h"

#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/dense/linear.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class Concatenate : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Concatenate);

TEST_P(Concatenate, ConcatenatesColumns) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const Tensor a = normal_tensor({2, 3, 1}, dtype, "a"), b = normal_tensor({2, 3, 70}, dtype, "b").narrow(2, 3, 33),
                 c = normal_tensor({2, 3, 4}, dtype, "c");
    Tape tape{testing::stream()};
    const Tensor whole = ops::concatenate_last(tape, {Variable(a), Variable(b), Variable(c)}).value();
    ASSERT_EQ(whole.shape(), Shape({2, 3, 38}));
    EXPECT_TRUE(whole.is_contiguous());
    EXPECT_EQ(doubles(whole.narrow(2, 0, 1)), doubles(a)) << name_of(dtype);
    EXPECT_EQ(doubles(whole.narrow(2, 1, 33)), doubles(b)) << name_of(dtype);
    EXPECT_EQ(doubles(whole.narrow(2, 34, 4)), doubles(c)) << name_of(dtype);
  }
}

TEST_P(Concatenate, ReturnsSinglePartUnchanged) {
  const Variable part(normal_tensor({2, 3}, DType::float32, "part"));
  Tape tape{testing::stream()};
  EXPECT_TRUE(ops::concatenate_last(tape, {part}).value().shares_memory_with(part.value()));
}

/// Undoing a split, in another order, with one range twice and a constant between them.
TEST_P(Concatenate, GradientsMatchFiniteDifferences) {
  const Tensor constant = normal_tensor({2, 3, 2}, DType::float64, "constant");
  const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const Variable whole = ops::linear(tape, inputs[0], inputs[1], nullptr);
    const std::vector<Variable> parts = tape.split_last(whole, {1, 4, 2});
    const Variable mixed = ops::concatenate_last(tape, {parts[2], parts[0], Variable(constant), parts[1], parts[0]});
    return ops::linear(tape, mixed, inputs[2], nullptr);
  };
  const auto result = check_gradients(
      function, {normal_tensor({2, 3, 5}, DType::float64, "x"), normal_tensor({7, 5}, DType::float64, "w0"),
                 normal_tensor({3, 10}, DType::float64, "w1")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST_P(Concatenate, LeavesReceiveOnlyTheirColumns) {
  const Variable a = Variable::leaf(normal_tensor({4, 3}, DType::bfloat16, "a")),
                 b(normal_tensor({4, 2}, DType::bfloat16, "b")),
                 c = Variable::leaf(normal_tensor({4, 5}, DType::bfloat16, "c"));
  Tape tape{testing::stream()};
  const Variable whole = ops::concatenate_last(tape, {a, b, c});
  const Tensor d_whole = normal_tensor({4, 10}, DType::bfloat16, "d_whole");
  tape.backward({whole}, {d_whole});
  EXPECT_EQ(doubles(a.gradient()), doubles(d_whole.narrow(1, 0, 3)));
  EXPECT_EQ(doubles(c.gradient()), doubles(d_whole.narrow(1, 5, 5)));
  EXPECT_FALSE(b.gradient().defined());
}

TEST(ConcatenateOnCpu, RejectsMismatchedShapes) {
  Tape tape{testing::stream()};
  const auto tensor = [](const Shape& shape, DType dtype = DType::float32) {
    return Variable(normal_tensor(shape, dtype, "t"));
  };
  EXPECT_THROW(ops::concatenate_last(tape, {}), ContractError);
  EXPECT_THROW(ops::concatenate_last(tape, {tensor({2, 3}), tensor({3, 3})}), ContractError);
  EXPECT_THROW(ops::concatenate_last(tape, {tensor({2, 3}), tensor({1, 2, 3})}), ContractError);
  EXPECT_THROW(ops::concatenate_last(tape, {tensor({2, 3}), tensor({2, 3}, DType::bfloat16)}), ContractError);
}

TEST(ConcatenateOnCpu, ShapeOnlyRunsTheSameSteps) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  const Variable a = Variable::leaf(Tensor::empty({2, 3}, DType::float32, device)),
                 b = Variable::leaf(Tensor::empty({2, 4}, DType::float32, device));
  const Variable whole = ops::concatenate_last(tape, {a, b});
  tape.backward({whole}, {Tensor::empty(whole.shape(), DType::float32, device)});
  EXPECT_EQ(whole.shape(), Shape({2, 7}));
  EXPECT_EQ(b.gradient().shape(), b.shape());
}

}  // namespace
}  // namespace furlong
