#pragma once
// One file per subcommand; each adds itself to the program. The work happens in the callback, which throws
// furlong::Error on failure and otherwise leaves the program's exit status in `status` (0 unless it says otherwise; 3
// after a stop by signal).
#include "cli/arguments.h"

namespace furlong::command_line {

void add_prepare(Command program, int& status);
void add_tokenize(Command program, int& status);
void add_train(Command program, int& status);
void add_launch(Command program, int& status);
void add_convert(Command program, int& status);
void add_finetune(Command program, int& status);
void add_evaluate(Command program, int& status);
void add_generate(Command program, int& status);
void add_export(Command program, int& status);
void add_logits(Command program, int& status);
void add_attend(Command program, int& status);
void add_bench(Command program, int& status);
void add_plan(Command program, int& status);
void add_analyze(Command program, int& status);
void add_config(Command program, int& status);
void add_doctor(Command program, int& status);

}  // namespace furlong::command_line
