#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// How far x is from a reference, as a share of the reference's own size: Σ |x - reference|² / Σ |reference|², both
/// sums over the rows that count. x [..., d] and reference of the same shape, their rows contiguous, with the same
/// accumulation type (a reference of another dtype is rounded to x's); keys_mask int32 with one value for each row of x
/// in any shape with contiguous rows, or null: rows with 0 do not count, whatever they hold. The loss is a scalar,
/// float32 (float64 for float64); 0 where the reference is zero or no row counts, with gradients of zero. The gradient,
/// 2 (x - reference) / Σ |reference|², goes to x alone. Sums are in double over fixed blocks: the same for any number
/// of threads. Throws ContractError for shapes and dtypes that do not fit.
Variable relative_error(Tape& tape, const Variable& x, const Tensor& reference, const Tensor* keys_mask = nullptr);

}  // namespace furlong::ops
