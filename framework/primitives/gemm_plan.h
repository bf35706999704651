#pragma once
// Describes a row-major product to a column-major library.
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// A matrix in memory as a column-major library reads it: element (i, j) at i + j * leading_dimension.
struct ColumnMajorMatrix {
  std::int64_t rows = 0, columns = 0, leading_dimension = 0;
  bool transposed = false;  ///< whether the product takes it transposed
  bool operator==(const ColumnMajorMatrix&) const = default;
};

/// What the library applies to the product before it stores it, or computes in addition.
enum class FusedEpilogue : std::uint8_t {
  none,
  bias,
  relu,
  relu_bias,
  gelu,  ///< this and the next three use the tanh formula
  gelu_bias,
  gelu_auxiliary,  ///< also writes product + bias to the auxiliary
  gelu_auxiliary_bias,
  gelu_gradient,  ///< result = product ⊙ GELU'(auxiliary)
  bias_gradient,  ///< also overwrites n sums of op(right) over k
};
inline constexpr int n_fused_epilogues = 10;

/// Returns whether `fused` reads m biases.
constexpr bool reads_bias(FusedEpilogue fused) {
  return fused == FusedEpilogue::bias || fused == FusedEpilogue::relu_bias || fused == FusedEpilogue::gelu_bias ||
         fused == FusedEpilogue::gelu_auxiliary_bias;
}
/// Returns whether `fused` reads or writes an auxiliary matrix.
constexpr bool has_auxiliary(FusedEpilogue fused) {
  return fused == FusedEpilogue::gelu_auxiliary || fused == FusedEpilogue::gelu_auxiliary_bias ||
         fused == FusedEpilogue::gelu_gradient;
}
/// Returns whether a library may lack an algorithm for `fused` although it has the product.
constexpr bool may_be_missing(FusedEpilogue fused) { return fused >= FusedEpilogue::gelu; }

/// How much a plan fuses.
enum class Fusion : std::uint8_t { all, bias_and_relu };

/// result = op(left) · op(right) + (accumulate ? result : 0), column-major, [m, k] · [k, n]. A row-major matrix in
/// memory is its transpose in column-major order, and cᵀ = op(b)ᵀ · op(a)ᵀ. So `left` is b's memory, `right` is a's,
/// and m is the number of c's columns.
struct GemmPlan {
  std::int64_t m = 0, n = 0, k = 0;
  ColumnMajorMatrix left, right, result;
  DType operand_dtype = DType::float32, result_dtype = DType::float32;
  bool accumulate = false;
  /// A fused bias has m elements of result_dtype, a bias gradient n.
  FusedEpilogue fused = FusedEpilogue::none;
  std::int64_t auxiliary_leading_dimension = 0;  ///< of a fused auxiliary [m, n] of result_dtype
  bool in_steps = false;                         ///< no single product: gemm_in_steps
  bool separate_epilogue = false;                ///< gemm_epilogue_gpu applies bias and activation afterwards
  /// The result is dense scratch, [n rows of m], from which the separate epilogue writes c.
  bool through_scratch = false;
  bool operator==(const GemmPlan&) const = default;
};

/// Returns the plan for gemm(a, transpose_a, b, transpose_b, c); shapes have been checked. The rules:
///   - Bias and ReLU are fused if the bias has c's dtype.
///   - A library's GELU is some evaluation of the tanh formula. It is fused for gelu_tanh if c is bfloat16 and the
///     auxiliary meets cuBLASLt's alignment: 16 bytes, with a row stride that is a multiple of 8 elements.
///   - A bias gradient is fused if it has c's dtype.
///   - Nothing is fused in float64.
///   - An unfused result for a bfloat16 c is stored in float32 first, so that it is rounded once.
GemmPlan plan_gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                   bool accumulate, const GemmEpilogue& epilogue, Fusion fusion = Fusion::all);

}  // namespace furlong::ops
