#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "cli/arguments.h"

namespace furlong::command_line {

/// Adds the subcommands listops and pathfinder to furlong prepare.
void add_prepare_tasks(Command prepare_command);

/// Returns the values of --samples, for train, validation and test. Throws UserError unless they are three positive
/// numbers.
std::array<std::uint64_t, 3> samples_of_splits(const std::vector<std::int64_t>& values);

}  // namespace furlong::command_line
