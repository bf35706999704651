// furlong finetune: from a model with softmax attention to one with the attention of a YAML file.
#include "conversion/finetune.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"

namespace furlong::command_line {
namespace {

struct Options {
  FinetuneOptions finetune;
  std::string config, run_directory;
  bool json = false;
};

int run(const Options& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more does not end a training
  FinetuneOptions wanted = options.finetune;
  wanted.config = options.config;
  wanted.run_directory = options.run_directory;
  const FinetuneResult result = finetune(wanted);
  const std::string directory = result.run_directory.string();
  if (options.json) {
    nlohmann::ordered_json object{
        {"interrupted", result.interrupted}, {"stage", result.stage}, {"run_directory", directory}};
    object["recovery_file"] = result.recovery_file.string();
    object["recovery"] = result.recovery ? to_json(*result.recovery) : nlohmann::ordered_json();
    fmt::print("{}\n", object.dump(2));
  } else {
    if (result.recovery) fmt::print("{}\n", to_text(*result.recovery));
    if (result.interrupted) {
      if (result.in_evaluation) {
        fmt::print("stopped by a signal in the evaluation; the run in {} is whole\nthe same command evaluates again\n",
                   directory);
      } else {
        fmt::print("stopped by a signal{}, saved in {}\nthe same command goes on from here\n",
                   result.stage.empty() ? std::string(" before the first stage") : " in stage " + result.stage,
                   directory);
      }
    } else if (!result.recovery) {
      fmt::print("stage {} is done; the run is in {}\n", result.stage, directory);
    } else {
      fmt::print("done; the run is in {}, these figures in {} there\n", directory,
                 result.recovery_file.filename().string());
    }
  }
  return result.interrupted ? 3 : 0;
}

}  // namespace

void add_finetune(Command program, int& status) {
  const Command command =
      program.add_subcommand("finetune",
                             "Give a softmax model another attention and train it in stages, as a YAML "
                             "file says; the same command again resumes");
  const auto options = std::make_shared<Options>();
  command.add_option("config", options->config, "The YAML file, with finetune.source and finetune.stages")
      .required()
      .value_name("CONFIG");
  command
      .add_option("--set", options->finetune.overrides,
                  "Set a key on top of the file, such as --set finetune.transfer.max_steps=500; may be repeated")
      .value_name("KEY=VALUE")
      .repeatable();
  command
      .add_option("--run-dir", options->run_directory,
                  "Where 1_STAGE/, 2_STAGE/, ..., teacher.h5, student.h5, finetune.json and recovery.json go "
                  "(default: run_directory of the config, or runs/NAME)")
      .value_name("DIR");
  command
      .add_option("--stage", options->finetune.only_stage,
                  "Only this one of finetune.stages, without the evaluation at the end")
      .value_name("NAME");
  command.add_flag("--evaluate-only", options->finetune.evaluate_only,
                   "No training: compare the teacher, the student before and what there is of each stage; a "
                   "recovery.json with\nmore stages stays, and the figures go beside it");
  command.add_flag("--json", options->json, "Print the result as JSON");
  command.footer(
      "Each stage is a run of its own (config.yaml, metrics.jsonl, checkpoints), as of furlong train; one that has "
      "ended is not repeated\n"
      "unless its folder is removed. SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 finish the step, save a checkpoint "
      "and end "
      "with status 3.\n"
      "Keys of the YAML file: furlong config reference, or docs/config.md, sections teacher and finetune.");
  command.action([options, &status] { status = run(*options); });
}

}  // namespace furlong::command_line
