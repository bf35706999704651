#pragma once
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Concatenates along the last dimension into one contiguous tensor. The parts agree in dtype and in all other
/// dimensions; they may be views with contiguous rows. A single part is returned unchanged. Throws ContractError if
/// shapes do not match or there are no parts.
Variable concatenate_last(Tape& tape, const std::vector<Variable>& parts);

}  // namespace furlong::ops
