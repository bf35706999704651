#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// x + scale · y, element by element, rounded once; contiguous tensors of one shape and dtype. Keeps nothing for
/// backward. Throws ContractError on tensors that do not fit.
Variable weighted_sum(Tape& tape, const Variable& x, const Variable& y, double scale = 1);

}  // namespace furlong::ops
