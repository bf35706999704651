#pragma once
#include "cli/arguments.h"

namespace furlong::command_line {

/// furlong bench comm, below furlong bench.
void add_bench_comm(Command bench);

}  // namespace furlong::command_line
