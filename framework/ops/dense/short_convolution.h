#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// The largest width of short_convolution.
inline constexpr std::int64_t max_short_convolution_width = 64;

/// Causal depthwise convolution along the sequence: y[b, t, c] = Σ_j weight[c, j] · x[b, t - (width - 1) + j, c], so
/// that weight[c, width - 1] meets the present. x [batch, n, channels] with contiguous rows (a column range will do),
/// weight [channels, width] in x's dtype or float32; y is a new contiguous tensor of x's shape and dtype, sums in
/// float32 (float64 for float64). What lies before the start is `history` [batch, width - 1, channels] in x's dtype,
/// the last inputs of what came before, oldest first; zero where it is null. `updated_history`, of the same shape, is
/// given the last inputs up to now; it may be `history` itself. No gradient goes into the history. `documents`, int32
/// [batch, n]: runs of equal numbers are documents packed one after another, each convolved as if it were a sequence of
/// its own; not together with a history. Throws ContractError on shapes that do not fit.
Variable short_convolution(Tape& tape, const Variable& x, const Variable& weight, const Tensor* history = nullptr,
                           const Tensor* updated_history = nullptr, const Tensor* documents = nullptr);

}  // namespace furlong::ops
