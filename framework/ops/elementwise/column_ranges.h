#pragma once
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Columns [start, start + length) of the last dimension of x, for consecutive lengths that sum up to it, as views.
/// Unlike Tape::split_last, x may be a view itself and may be split more than once; for that, each range has a gradient
/// of its own, which backward adds to x's. Throws ContractError on lengths that do not fit.
std::vector<Variable> column_ranges(Tape& tape, const Variable& x, const std::vector<std::int64_t>& lengths);

}  // namespace furlong::ops
