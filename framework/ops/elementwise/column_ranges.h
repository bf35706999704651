#pragma once
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Splits the last dimension of x into views of the given lengths, which must sum to its extent. Unlike for
/// Tape::split_last, x may itself be a view and may be split more than once. To allow this, each range has its own
/// gradient, which backward adds to x's. Throws ContractError if the lengths do not sum to the extent.
std::vector<Variable> column_ranges(Tape& tape, const Variable& x, const std::vector<std::int64_t>& lengths);

}  // namespace furlong::ops
