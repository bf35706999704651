#pragma once
#include "cli/arguments.h"

namespace furlong::command_line {

/// Adds the subcommand lra to furlong bench.
void add_bench_lra(Command bench, int& status);

}  // namespace furlong::command_line
