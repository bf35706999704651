#include "framework/ops/dense/linear.h"

#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/gemm.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using Activation = ops::GemmEpilogue::Activation;

class Linear : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Linear);

std::vector<double> expected_output(const Tensor& x, const Tensor& weight, const Tensor* bias) {
  const std::int64_t rows = x.shape().rows(), inner = x.extent(-1), outer = weight.extent(0);
  std::vector<double> y = reference::product(values_of(x), false, values_of(weight), true, rows, outer, inner).value;
  if (bias) {
    const std::vector<double> added = values_of(*bias);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += added[i % added.size()];
  }
  return y;
}

TEST_P(Linear, MultipliesTheLastDimension) {
  for (DType dtype : float_dtypes) {
    for (const Shape& shape : {Shape{1}, Shape{7}, Shape{1, 1}, Shape{5, 33}, Shape{2, 3, 17}, Shape{2, 1, 3, 9}}) {
      for (std::int64_t outer : {1, 6, 35}) {
        for (bool with_bias : {false, true}) {
          const Tensor x = tensor_of(normal_values(shape.elements(), "x"), shape, dtype);
          const Tensor weight = tensor_of(normal_values(outer * shape[-1], "weight"), {outer, shape[-1]}, dtype);
          const Variable bias(tensor_of(normal_values(outer, "bias"), {outer}, dtype));
          Tape tape(stream());
          const Variable y = ops::linear(tape, Variable(x), Variable(weight), with_bias ? &bias : nullptr);
          Shape expected_shape = shape;
          expected_shape[-1] = outer;
          ASSERT_EQ(y.shape(), expected_shape);
          EXPECT_EQ(y.dtype(), dtype);
          EXPECT_FALSE(y.requires_gradient());
          // Sums of at most 34 normal terms, some of which cancel. The worst element is within 40 roundings of the
          // largest, plus the rounding of the store.
          const double tolerance = 40 * rounding_unit(accumulate_dtype(dtype)) + rounding_unit(dtype);
          EXPECT_LE(
              relative_error(values_of(y.value()), expected_output(x, weight, with_bias ? &bias.value() : nullptr)),
              tolerance)
              << name_of(dtype) << " " << shape.text() << " to " << outer;
        }
      }
    }
  }
}

TEST_P(Linear, GradientsMatchFiniteDifferences) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7}, Shape{5, 3}, Shape{2, 3, 9}}) {
    for (std::int64_t outer : {1, 6}) {
      for (bool with_bias : {false, true}) {
        std::vector<Tensor> inputs{
            tensor_of(normal_values(shape.elements(), "x"), shape, DType::float64),
            tensor_of(normal_values(outer * shape[-1], "weight"), {outer, shape[-1]}, DType::float64)};
        if (with_bias) inputs.push_back(tensor_of(normal_values(outer, "bias"), {outer}, DType::float64));
        const auto result = check_gradients(
            [](Tape& tape, const std::vector<Variable>& in) {
              return ops::linear(tape, in[0], in[1], in.size() > 2 ? &in[2] : nullptr);
            },
            inputs);
        EXPECT_LE(result.worst_relative_error, 1e-9) << shape.text() << " to " << outer << ": " << result.where;
      }
    }
  }
}

TEST_P(Linear, AccumulatesGradientsOfInputsUsedTwice) {
  const std::vector<Tensor> inputs{tensor_of(normal_values(12, "x"), {3, 4}, DType::float64),
                                   tensor_of(normal_values(16, "weight"), {4, 4}, DType::float64),
                                   tensor_of(normal_values(4, "bias"), {4}, DType::float64)};
  const auto result = check_gradients(
      [](Tape& tape, const std::vector<Variable>& in) {
        return ops::linear(tape, ops::linear(tape, in[0], in[1], &in[2]), in[1], &in[2]);
      },
      inputs);
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST_P(Linear, SavesAndComputesOnlyWhatIsNeeded) {
  const Tensor x = tensor_of(normal_values(12, "x"), {3, 4}, DType::float64),
               weight = tensor_of(normal_values(8, "weight"), {2, 4}, DType::float64);
  const Tensor d_y = tensor_of(normal_values(6, "d_y"), {3, 2}, DType::float64);
  // Our own product in double adds in the order of the reference. CUDA fuses multiplication and addition, in its own
  // order.
  const double tolerance = device().type == DeviceType::cuda ? 4 * rounding_unit(DType::float64) : 0;
  for (bool wants_x : {false, true}) {
    for (bool wants_weight : {false, true}) {
      Tape tape(stream());
      const Variable vx = wants_x ? Variable::leaf(x) : Variable(x),
                     vw = wants_weight ? Variable::leaf(weight) : Variable(weight);
      const Variable y = ops::linear(tape, vx, vw, nullptr);
      EXPECT_EQ(y.requires_gradient(), wants_x || wants_weight);
      if (!y.requires_gradient()) continue;
      EXPECT_EQ(tape.saved_bytes().at("linear"), (wants_weight ? x.bytes() : 0) + weight.bytes());
      tape.backward({y}, {d_y});
      EXPECT_EQ(vx.gradient().defined(), wants_x);
      EXPECT_EQ(vw.gradient().defined(), wants_weight);
      if (wants_x) {
        EXPECT_LE(relative_error(values_of(vx.gradient()),
                                 reference::product(values_of(d_y), false, values_of(weight), false, 3, 4, 2).value),
                  tolerance);
      }
      if (wants_weight) {
        EXPECT_LE(relative_error(values_of(vw.gradient()),
                                 reference::product(values_of(d_y), true, values_of(x), false, 2, 4, 3).value),
                  tolerance);
      }
    }
  }
}

TEST_P(Linear, ReadsColumnRangeWithoutCopy) {
  for (DType dtype : float_dtypes) {
    const Tensor whole = tensor_of(normal_values(5 * 20, "whole"), {5, 20}, dtype), part = whole.narrow(1, 4, 7);
    const Tensor weight = tensor_of(normal_values(21, "weight"), {3, 7}, dtype);
    Tape tape(stream());
    const Variable y = ops::linear(tape, Variable(part), Variable(weight), nullptr);
    EXPECT_LE(relative_error(values_of(y.value()), expected_output(part, weight, nullptr)),
              10 * rounding_unit(accumulate_dtype(dtype)) + rounding_unit(dtype));
  }
}

TEST_P(Linear, Bfloat16ParametersHaveFloat32Gradients) {
  const Tensor x = tensor_of(normal_values(40 * 6, "x"), {40, 6}, DType::bfloat16);
  const Tensor weight = tensor_of(normal_values(3 * 6, "weight"), {3, 6}, DType::bfloat16),
               bias = tensor_of(normal_values(3, "bias"), {3}, DType::bfloat16);
  const Tensor d_y = tensor_of(normal_values(120, "d_y"), {40, 3}, DType::bfloat16);
  // As in the parameter store: values in 16 bits, the slot in 32.
  const auto parameter = [](const Tensor& value) {
    const Variable leaf = Variable::leaf(value);
    leaf.slot()->dtype = DType::float32;
    return leaf;
  };
  Tape tape(stream());
  const Variable vw = parameter(weight), vb = parameter(bias);
  const Variable y = ops::linear(tape, Variable(x), vw, &vb);
  tape.backward({y}, {d_y});
  ASSERT_EQ(vw.gradient().dtype(), DType::float32);
  ASSERT_EQ(vb.gradient().dtype(), DType::float32);
  // Products of 16-bit numbers are exact in float32, so only the rounding of 40 additions remains.
  EXPECT_LE(relative_error(values_of(vw.gradient()),
                           reference::product(values_of(d_y), true, values_of(x), false, 3, 6, 40).value),
            40 * 0x1p-24);
  EXPECT_LE(
      relative_error(values_of(vb.gradient()),
                     reference::product(values_of(d_y), true, std::vector<double>(40, 1.0), false, 3, 1, 40).value),
      40 * 0x1p-24);
}

TEST_P(Linear, FusesActivationOnlyWithoutRecording) {
  const Tensor x = tensor_of(normal_values(15, "x"), {3, 5}, DType::float32),
               weight = tensor_of(normal_values(20, "weight"), {4, 5}, DType::float32);
  Tape tape(stream());
  const Variable leaf = Variable::leaf(weight);
  EXPECT_THROW(ops::linear(tape, Variable(x), leaf, nullptr, Activation::gelu), ContractError);
  const Tape::NoGradient guard(tape);
  const Variable y = ops::linear(tape, Variable(x), leaf, nullptr, Activation::gelu);
  std::vector<double> expected = expected_output(x, weight, nullptr);
  for (double& value : expected) value = reference::activation_after_product(Activation::gelu, value);
  EXPECT_LE(relative_error(values_of(y.value()), expected), 1e-6);
}

TEST(LinearShapes, RejectsMismatchedShapes) {
  Tape tape(stream());
  const auto zeros = [](const Shape& shape) { return Variable(Tensor::zeros(shape, DType::float32)); };
  const Variable bias = zeros({3});
  EXPECT_THROW(ops::linear(tape, zeros({2, 4}), zeros({3, 5}), nullptr), ContractError);
  EXPECT_THROW(ops::linear(tape, zeros({2, 4}), zeros({4}), nullptr), ContractError);
  EXPECT_THROW(ops::linear(tape, zeros({2, 4}), zeros({2, 4}), &bias), ContractError);
  EXPECT_THROW(ops::linear(tape, Variable(Tensor::zeros({2, 4}, DType::bfloat16)), zeros({2, 4}), nullptr),
               ContractError);
}

}  // namespace
}  // namespace furlong
