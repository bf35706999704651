#include "framework/primitives/gemm_plan.h"

#include <algorithm>

namespace furlong::ops {
namespace {

/// The stride of a single row is arbitrary, but libraries require at least the row's length.
std::int64_t leading_dimension(const Tensor& matrix) {
  return matrix.extent(0) == 1 ? std::max(matrix.strides()[0], matrix.extent(1)) : matrix.strides()[0];
}

ColumnMajorMatrix memory_of(const Tensor& matrix, bool transposed) {
  return {matrix.extent(1), matrix.extent(0), leading_dimension(matrix), transposed};
}

/// Returns whether the library's GELU, or its gradient, can be fused.
bool is_library_gelu(const Tensor& a, const Tensor& c, const GemmEpilogue& epilogue) {
  if (epilogue.activation != GemmEpilogue::Activation::gelu_tanh) return false;
  if (a.dtype() != DType::bfloat16 || c.dtype() != DType::bfloat16) return false;
  if (epilogue.bias != nullptr && epilogue.bias->dtype() != c.dtype()) return false;
  if (epilogue.auxiliary == nullptr) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(epilogue.auxiliary->address());
  return address % 16 == 0 && leading_dimension(*epilogue.auxiliary) % 8 == 0;
}

FusedEpilogue fused_gelu(const GemmEpilogue& epilogue) {
  if (epilogue.activation_gradient) return FusedEpilogue::gelu_gradient;
  if (epilogue.auxiliary != nullptr)
    return epilogue.bias ? FusedEpilogue::gelu_auxiliary_bias : FusedEpilogue::gelu_auxiliary;
  return epilogue.bias ? FusedEpilogue::gelu_bias : FusedEpilogue::gelu;
}

bool is_library_bias_gradient(const Tensor& c, const GradientTarget& sums) {
  return sums.wanted() && sums.tensor.dtype() == c.dtype() && c.dtype() != DType::float64 &&
         sums.tensor.is_contiguous();
}

}  // namespace

GemmPlan plan_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                   bool accumulate, const GemmEpilogue& epilogue, Fusion fusion) {
  using Activation = GemmEpilogue::Activation;
  GemmPlan plan;
  plan.m = c.extent(1);
  plan.n = c.extent(0);
  plan.k = a.extent(transpose_a ? 0 : 1);
  plan.left = memory_of(b, transpose_b);
  plan.right = memory_of(a, transpose_a);
  plan.result = memory_of(c, false);
  plan.operand_dtype = a.dtype();
  plan.result_dtype = c.dtype();
  plan.accumulate = accumulate;
  const bool biased = epilogue.bias != nullptr, activated = epilogue.activation != Activation::none;
  if (fusion == Fusion::all) {
    if (is_library_gelu(a, c, epilogue)) {
      plan.fused = fused_gelu(epilogue);
      if (epilogue.auxiliary != nullptr) plan.auxiliary_leading_dimension = leading_dimension(*epilogue.auxiliary);
      return plan;
    }
    if (is_library_bias_gradient(c, epilogue.bias_gradient)) {
      plan.fused = FusedEpilogue::bias_gradient;
      return plan;
    }
  }
  plan.in_steps = epilogue.is_composite();
  if (plan.in_steps || (!biased && !activated)) return plan;
  const bool fits =
      (!biased || epilogue.bias->dtype() == c.dtype()) && (!activated || epilogue.activation == Activation::relu);
  if (fits && c.dtype() != DType::float64) {
    plan.fused = !biased ? FusedEpilogue::relu : activated ? FusedEpilogue::relu_bias : FusedEpilogue::bias;
    return plan;
  }
  plan.separate_epilogue = true;
  plan.through_scratch = c.dtype() == DType::bfloat16;
  if (plan.through_scratch) {
    plan.result_dtype = DType::float32;
    plan.result.leading_dimension = plan.m;
  }
  return plan;
}

}  // namespace furlong::ops
