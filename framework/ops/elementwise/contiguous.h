#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Returns x itself if it is contiguous, otherwise a contiguous copy (of a column range, for example). Throws
/// ContractError if rows are not contiguous.
Variable contiguous(Tape& tape, const Variable& x);

}  // namespace furlong::ops
