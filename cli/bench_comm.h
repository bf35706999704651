#pragma once
#include "cli/arguments.h"

namespace furlong::command_line {

/// Adds the subcommand comm to furlong bench.
void add_bench_comm(Command bench);

}  // namespace furlong::command_line
