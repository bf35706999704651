#pragma once
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Columns side by side: tensors that agree in dtype and in all dimensions but the last, views with contiguous rows
/// welcome, become one contiguous tensor. One tensor alone is handed back as it is. Throws ContractError on shapes that
/// do not fit, and for none at all.
Variable concatenate_last(Tape& tape, const std::vector<Variable>& parts);

}  // namespace furlong::ops
