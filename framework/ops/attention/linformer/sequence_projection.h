#pragma once
// Linformer's projections along the sequence, E and F (Wang et al. 2020, "Linformer: Self-Attention with Linear
// Complexity", section 4): n rows become at most r, so that attention over them costs n·r. Each row of the result mixes
// tokens of many positions: nothing that reads it can be causal.
#include "framework/autodiff/tape.h"
#include "framework/core/enum_names.h"

namespace furlong::ops {

enum class SequenceProjection : std::uint8_t {
  linear,      ///< y_i = Σ_t weight[i, t] x_t; always r rows
  mean,        ///< the mean of `stride` consecutive tokens; no weight
  convolution  ///< y_i = Σ_j weight[·, j] x_{i·stride + j} channel by channel, as wide as its stride: windows do not
               ///< overlap
};
constexpr auto names_of(SequenceProjection) { return std::array{"linear", "mean", "convolution"}; }

struct SequenceProjectionOptions {
  SequenceProjection kind = SequenceProjection::linear;
  std::int64_t n_heads = 1;
  std::int64_t projected_length = 0;  ///< r
  std::int64_t max_length =
      0;  ///< the longest sequence, at least r; shorter ones use the first columns of a linear weight

  /// mean, convolution: tokens a row, ⌈max_length / r⌉, so that even the longest sequence gives at most r rows.
  std::int64_t stride() const { return (max_length + projected_length - 1) / projected_length; }
  /// Rows that n tokens become: r for linear, otherwise ⌈n / stride⌉, of which the last holds what there is.
  std::int64_t rows(std::int64_t n) const {
    return kind == SequenceProjection::linear ? projected_length : (n + stride() - 1) / stride();
  }
};

/// Shape of the weight for heads of width d, one for all heads or one for each:
///   linear [r, max_length] or [n_heads, r, max_length]; convolution [d, stride] or [n_heads·d, stride];
///   mean: rank 0, there is none.
Shape sequence_projection_weight_shape(const SequenceProjectionOptions& options, std::int64_t d, bool shared_by_heads);

/// x [batch, n, n_heads·d], n <= max_length, a view with contiguous rows will do -> [batch, rows(n), n_heads·d].
/// `weight` is in x's dtype, of either shape above, undefined for mean. `keys`, where defined, is int32 [batch, n]: a
/// token with 0 adds nothing to any row whatever it holds, a mean is over the others, and its gradient is zero; a row
/// left without tokens is zero and must not be attended: see sequence_projection_mask(). Throws ContractError on shapes
/// that do not fit.
Variable sequence_projection(Tape& tape, const Variable& x, const Variable& weight, const Tensor& keys,
                             const SequenceProjectionOptions& options);

/// int32 [batch, rows(n)]: 1 where at least one kept token goes into the row. Undefined when `keys` is.
Tensor sequence_projection_mask(const Stream& stream, const Tensor& keys, const SequenceProjectionOptions& options);

}  // namespace furlong::ops
