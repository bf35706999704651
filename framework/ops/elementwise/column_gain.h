#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Returns y = x · gain, column by column: x [..., columns] contiguous, gain [columns] of any floating dtype; y in x's
/// dtype. d_gain is summed in float32 (float64 for float64) over fixed blocks of rows, with the same bits for any
/// number of threads. Throws ContractError if shapes do not match.
Variable column_gain(Tape& tape, const Variable& x, const Variable& gain);

}  // namespace furlong::ops
