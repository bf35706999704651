#pragma once
// Each subcommand has its own file and adds itself to the program. Its action throws furlong::Error on failure.
// Otherwise it can set `status`, the program's exit status (default 0; 3 after a stop by a signal).
#include "cli/arguments.h"

namespace furlong::command_line {

void add_prepare(Command program, int& status);
void add_tokenize(Command program, int& status);
void add_train(Command program, int& status);
void add_sweep(Command program, int& status);
void add_launch(Command program, int& status);
void add_convert(Command program, int& status);
void add_finetune(Command program, int& status);
void add_evaluate(Command program, int& status);
void add_generate(Command program, int& status);
void add_export(Command program, int& status);
void add_logits(Command program, int& status);
void add_embed(Command program, int& status);
void add_score(Command program, int& status);
void add_predict(Command program, int& status);
void add_attend(Command program, int& status);
void add_bench(Command program, int& status);
void add_plan(Command program, int& status);
void add_analyze(Command program, int& status);
void add_report(Command program, int& status);
void add_runs(Command program, int& status);
void add_config(Command program, int& status);
void add_doctor(Command program, int& status);
void add_completion(Command program, int& status);

}  // namespace furlong::command_line
