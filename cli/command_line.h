#pragma once
// One file per subcommand; each adds itself to the program. The work happens in the callback, which throws
// furlong::Error on failure and otherwise leaves the program's exit status in `status` (0 unless it says otherwise; 3
// after a stop by signal).
#include <CLI/CLI.hpp>

namespace furlong::command_line {

void add_prepare(CLI::App& program, int& status);
void add_tokenize(CLI::App& program, int& status);
void add_train(CLI::App& program, int& status);
void add_launch(CLI::App& program, int& status);
void add_convert(CLI::App& program, int& status);
void add_finetune(CLI::App& program, int& status);
void add_evaluate(CLI::App& program, int& status);
void add_generate(CLI::App& program, int& status);
void add_export(CLI::App& program, int& status);
void add_logits(CLI::App& program, int& status);
void add_attend(CLI::App& program, int& status);
void add_bench(CLI::App& program, int& status);
void add_plan(CLI::App& program, int& status);
void add_analyze(CLI::App& program, int& status);
void add_config(CLI::App& program, int& status);
void add_doctor(CLI::App& program, int& status);

}  // namespace furlong::command_line
