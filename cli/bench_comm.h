#pragma once
#include <CLI/CLI.hpp>

namespace furlong::command_line {

/// furlong bench comm, below furlong bench.
void add_bench_comm(CLI::App& bench);

}  // namespace furlong::command_line
