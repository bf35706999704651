#pragma once
// A row-major product as a column-major library is told about it.
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// A matrix as a column-major library sees its memory: element (i, j) at i + j * leading_dimension.
struct ColumnMajorMatrix {
  std::int64_t rows = 0, columns = 0, leading_dimension = 0;
  bool transposed = false;  ///< whether the product takes it transposed
  bool operator==(const ColumnMajorMatrix&) const = default;
};

/// What the library does to the product before it stores it, or besides.
enum class FusedEpilogue : std::uint8_t {
  none,
  bias,
  relu,
  relu_bias,
  gelu,  ///< this and the next three: the tanh formula
  gelu_bias,
  gelu_auxiliary,  ///< and product + bias into the auxiliary
  gelu_auxiliary_bias,
  gelu_gradient,  ///< result = product ⊙ GELU'(auxiliary)
  bias_gradient,  ///< n sums of op(right) over k, overwritten
};
inline constexpr int n_fused_epilogues = 10;

/// Whether `fused` reads m biases.
constexpr bool reads_bias(FusedEpilogue fused) {
  return fused == FusedEpilogue::bias || fused == FusedEpilogue::relu_bias || fused == FusedEpilogue::gelu_bias ||
         fused == FusedEpilogue::gelu_auxiliary_bias;
}
/// Whether `fused` reads or writes an auxiliary matrix.
constexpr bool has_auxiliary(FusedEpilogue fused) {
  return fused == FusedEpilogue::gelu_auxiliary || fused == FusedEpilogue::gelu_auxiliary_bias ||
         fused == FusedEpilogue::gelu_gradient;
}
/// Whether a library may be without an algorithm for `fused` although it has the product.
constexpr bool may_be_missing(FusedEpilogue fused) { return fused >= FusedEpilogue::gelu; }

/// How much a plan asks of the library.
enum class Fusion : std::uint8_t { all, bias_and_relu };

/// result = op(left) · op(right) + (accumulate ? result : 0), column-major, [m, k] · [k, n]. The memory of a row-major
/// matrix is that of its transpose in column-major order, and cᵀ = op(b)ᵀ · op(a)ᵀ: `left` is b's memory, `right` a's,
/// m counts c's columns.
struct GemmPlan {
  std::int64_t m = 0, n = 0, k = 0;
  ColumnMajorMatrix left, right, result;
  DType operand_dtype = DType::float32, result_dtype = DType::float32;
  bool accumulate = false;
  FusedEpilogue fused = FusedEpilogue::none;     ///< a fused bias has m elements of result_dtype, a bias's gradient n
  std::int64_t auxiliary_leading_dimension = 0;  ///< of a fused auxiliary [m, n] of result_dtype
  bool in_steps = false;                         ///< no single product: gemm_in_steps
  bool separate_epilogue = false;                ///< bias and activation are applied by gemm_epilogue_gpu afterwards
  bool through_scratch = false;  ///< the result is scratch, [n rows of m] and dense, from which that step goes to c
  bool operator==(const GemmPlan&) const = default;
};

/// The plan for gemm(a, transpose_a, b, transpose_b, c) with shapes already checked. Bias and ReLU are fused where the
/// bias has c's dtype. A library's GELU is the tanh formula, evaluated as it sees fit: it is taken for gelu_tanh where
/// c is bfloat16, and the auxiliary begins at a multiple of 16 bytes, with rows a multiple of 8 elements apart, as
/// cuBLASLt asks. A bias's gradient has to have c's dtype. Nothing is fused in float64. What is not fused and goes to a
/// bfloat16 c is kept in float32 in between, so that it is rounded once.
GemmPlan plan_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                   bool accumulate, const GemmEpilogue& epilogue, Fusion fusion = Fusion::all);

}  // namespace furlong::ops
