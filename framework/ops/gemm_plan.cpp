#include "framework/ops/gemm_plan.h"

#include <algorithm>

namespace furlong::ops {
namespace {

/// A single row has no stride to speak of; libraries want one as long as the row all the same.
std::int64_t leading_dimension(const Tensor& matrix) {
  return matrix.extent(0) == 1 ? std::max(matrix.strides()[0], matrix.extent(1)) : matrix.strides()[0];
}

ColumnMajorMatrix memory_of(const Tensor& matrix, bool transposed) {
  return {matrix.extent(1), matrix.extent(0), leading_dimension(matrix), transposed};
}

}  // namespace

GemmPlan plan_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                   const GemmEpilogue& epilogue) {
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
  if (!biased && !activated) return plan;
  const bool fits = (!biased || epilogue.bias->dtype() == c.dtype()) && (!activated || epilogue.activation == Activation::relu);
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
