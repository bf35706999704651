#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// The squared error of x relative to a reference: Σ |x - reference|² / Σ |reference|², both sums over the rows that
/// count.
///   x          [..., d], rows contiguous
///   reference  the same shape, rows contiguous, with the same accumulation dtype; rounded to x's dtype if it differs
///   keys_mask  int32, one for each row of x, in any shape with contiguous rows, or null; rows with 0 are ignored,
///              whatever their values
/// Returns a scalar, float32 (float64 for float64). It is 0, with zero gradients, if the reference is zero or no row
/// counts. Only x receives a gradient: 2 (x - reference) / Σ |reference|². Sums are in double over fixed blocks, with
/// the same bits for any number of threads. Throws ContractError if shapes or dtypes do not match.
Variable relative_error(Tape& tape, const Variable& x, const Tensor& reference, const Tensor* keys_mask = nullptr);

}  // namespace furlong::ops
