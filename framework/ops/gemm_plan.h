#pragma once
// A row-major product as a column-major library is told about it.
#include "framework/ops/gemm.h"

namespace furlong::ops {

/// A matrix as a column-major library sees its memory: element (i, j) at i + j * leading_dimension.
struct ColumnMajorMatrix {
  std::int64_t rows = 0, columns = 0, leading_dimension = 0;
  bool transposed = false;  ///< whether the product takes it transposed
  bool operator==(const ColumnMajorMatrix&) const = default;
};

/// What the library does to the product before it stores it.
enum class FusedEpilogue : std::uint8_t { none, bias, relu, relu_bias };

/// result = op(left) · op(right) + (accumulate ? result : 0), column-major, [m, k] · [k, n]. The memory of a row-major matrix is that of
/// its transpose in column-major order, and cᵀ = op(b)ᵀ · op(a)ᵀ: `left` is b's memory, `right` a's, m counts c's columns.
struct GemmPlan {
  std::int64_t m = 0, n = 0, k = 0;
  ColumnMajorMatrix left, right, result;
  DType operand_dtype = DType::float32, result_dtype = DType::float32;
  bool accumulate = false;
  FusedEpilogue fused = FusedEpilogue::none;  ///< a fused bias has m elements of result_dtype
  bool separate_epilogue = false;             ///< bias and activation are applied by gemm_epilogue_gpu afterwards
  bool through_scratch = false;               ///< the result is scratch, [n rows of m] and dense, from which that step goes to c
  bool operator==(const GemmPlan&) const = default;
};

/// The plan for gemm(a, transpose_a, b, transpose_b, c) with shapes already checked. Bias and ReLU are fused where the bias has c's dtype.
/// GELU is not: a library's is the tanh formula, evaluated fast, where ours is exact; neither is anything in float64. What is not fused and
/// goes to a bfloat16 c is kept in float32 in between, so that it is rounded once.
GemmPlan plan_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                   const GemmEpilogue& epilogue);

}  // namespace furlong::ops
