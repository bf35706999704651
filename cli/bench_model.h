#pragma once
#include "cli/arguments.h"

namespace furlong::command_line {

/// Adds furlong bench model.
void add_bench_model(Command bench);

}  // namespace furlong::command_line
