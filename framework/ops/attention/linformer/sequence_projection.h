#pragma once
// Linformer's projections along the sequence, E and F (Wang et al. 2020, "Linformer: Self-Attention with Linear
// Complexity", section 4): n rows become at most r, so attention over them costs n·r. Each row of the result mixes
// tokens of many positions, so attention over it cannot be causal.
#include "framework/autodiff/tape.h"
#include "framework/core/enum_names.h"

namespace furlong::ops {

/// How n tokens become at most r rows.
enum class SequenceProjection : std::uint8_t {
  linear,  ///< y_i = Σ_t weight[i, t] x_t; always r rows
  mean,    ///< the mean of `stride` consecutive tokens; no weight
  /// y_i = Σ_j weight[·, j] x_{i·stride + j}, depthwise. Kernel width and stride are equal: windows do not overlap.
  convolution
};
constexpr auto names_of(SequenceProjection) { return std::array{"linear", "mean", "convolution"}; }

struct SequenceProjectionOptions {
  SequenceProjection kind = SequenceProjection::linear;
  std::int64_t n_heads = 1;
  std::int64_t projected_length = 0;  ///< r
  /// Maximum sequence length, at least r. Shorter sequences use the first columns of a linear weight.
  std::int64_t max_length = 0;

  /// mean, convolution: tokens per row, ⌈max_length / r⌉, so that the longest sequence gives at most r rows.
  std::int64_t stride() const { return (max_length + projected_length - 1) / projected_length; }
  /// Number of rows for n tokens: r for linear, otherwise ⌈n / stride⌉; the last row may have fewer tokens.
  std::int64_t rows(std::int64_t n) const {
    return kind == SequenceProjection::linear ? projected_length : (n + stride() - 1) / stride();
  }
};

/// Returns the shape of the weight for heads of width d, either shared by all heads or one for each head:
///   linear [r, max_length] or [n_heads, r, max_length]; convolution [d, stride] or [n_heads·d, stride];
///   mean: rank 0, because it has no weight.
Shape sequence_projection_weight_shape(const SequenceProjectionOptions& options, std::int64_t d, bool shared_by_heads);

/// Projects x [batch, n, n_heads·d], n <= max_length, a view with contiguous rows. Returns
/// [batch, rows(n), n_heads·d]. `weight` has x's dtype and either shape above; undefined for mean.
/// `keys`, if defined, is int32 [batch, n]. A token with 0 adds nothing to any row, whatever its values, and gets
/// gradient zero; a mean is over the other tokens. A row without tokens is zero and must be masked in attention: see
/// sequence_projection_mask(). Throws ContractError if shapes do not match.
Variable sequence_projection(Tape& tape, const Variable& x, const Variable& weight, const Tensor& keys,
                             const SequenceProjectionOptions& options);

/// Returns int32 [batch, rows(n)]: 1 if at least one kept token contributes to the row. Undefined if `keys` is.
Tensor sequence_projection_mask(const Stream& stream, const Tensor& keys, const SequenceProjectionOptions& options);

}  // namespace furlong::ops
