#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Returns x + scale · y, element by element, rounded once. x and y are contiguous, of one shape and dtype. Saves
/// nothing for backward. Throws ContractError if the tensors do not match.
Variable weighted_sum(Tape& tape, const Variable& x, const Variable& y, double scale = 1);

}  // namespace furlong::ops
