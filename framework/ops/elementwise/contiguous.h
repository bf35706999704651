#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// x itself where it is contiguous, else a copy that is, as of a column range; rows must be contiguous. Throws
/// ContractError otherwise.
Variable contiguous(Tape& tape, const Variable& x);

}  // namespace furlong::ops
