#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// The maximum width of short_convolution.
inline constexpr std::int64_t max_short_convolution_width = 64;

/// Causal depthwise convolution along the sequence: y[b, t, c] = Σ_j weight[c, j] · x[b, t - (width - 1) + j, c], so
/// that weight[c, width - 1] multiplies the current input. Returns a new contiguous tensor of x's shape and dtype. Sums
/// are in float32 (float64 for float64).
///   x                [batch, n, channels] with contiguous rows (a column range is allowed)
///   weight           [channels, width] in x's dtype or float32
///   history          [batch, width - 1, channels] in x's dtype: the inputs before x, oldest first; null: zeros. It
///                    receives no gradient.
///   updated_history  receives the last width - 1 inputs, in the shape of `history`; may be `history` itself
///   documents        int32 [batch, n]: runs of equal numbers are packed documents, each convolved as a separate
///                    sequence. Not allowed together with a history.
/// Throws ContractError if shapes do not match.
Variable short_convolution(Tape& tape, const Variable& x, const Variable& weight, const Tensor* history = nullptr,
                           const Tensor* updated_history = nullptr, const Tensor* documents = nullptr);

}  // namespace furlong::ops
