// furlong finetune: replaces the attention of a softmax model and trains it in stages.
#include "conversion/finetune.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "cli/text_output.h"
#include "framework/core/standard_streams.h"

namespace furlong::command_line {
namespace {

struct FinetuneArguments {
  FinetuneOptions finetune;
  std::string config, run_directory;
  bool json = false;
};

int run(const FinetuneArguments& options) {
  continue_without_readers();
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
    print_json(object);
  } else {
    if (result.recovery) print_message(to_text(*result.recovery) + "\n");
    if (result.interrupted) {
      if (result.in_evaluation) {
        print_message(
            fmt::format("stopped by a signal in the evaluation; all stages in {} are complete\nrun the same command "
                        "again to evaluate\n",
                        directory));
      } else {
        print_message(fmt::format(
            "stopped by a signal{}, saved in {}\nrun the same command again to resume\n",
            result.stage.empty() ? std::string(" before the first stage") : " in stage " + result.stage, directory));
      }
    } else if (!result.recovery) {
      print_message(fmt::format("stage {} is finished; the run is in {}\n", result.stage, directory));
    } else {
      print_message(fmt::format("finished; the run is in {}, these results are in its {}\n", directory,
                                result.recovery_file.filename().string()));
    }
  }
  return result.interrupted ? 3 : 0;
}

}  // namespace

void add_finetune(Command program, int& status) {
  const Command command =
      program.add_subcommand("finetune", "Replace the attention of a softmax model and train it in stages");
  const auto options = std::make_shared<FinetuneArguments>();
  command.add_option("config", options->config, "YAML file with finetune.source and finetune.stages")
      .required()
      .value_name("CONFIG");
  add_overrides(command, options->finetune.overrides, "finetune.attention_transfer.max_steps=500");
  command
      .add_option("--run-dir", options->run_directory,
                  "Directory of the run (default: run_directory of the config, or runs/NAME)")
      .value_name("DIR");
  command
      .add_option(
          "--stage", options->finetune.only_stage,
          "Run only this stage of finetune.stages (attention_transfer, distillation or task), without the final "
          "evaluation")
      .value_name("NAME");
  command.add_flag(
      "--evaluate-only", options->finetune.evaluate_only,
      "Do not train: evaluate the teacher, the initial student, and each existing stage. If recovery.json covers other "
      "stages, results go to recovery_STAGES.json instead, for example recovery_1_attention_transfer.json");
  add_json(command, options->json);
  command.footer(
      "The same command again resumes. The run directory gets 1_STAGE/, 2_STAGE/, ..., teacher.h5, student.h5, "
      "finetune.json and recovery.json.\n"
      "recovery.json compares the student, before training and after each stage, with the teacher: loss, accuracy, the "
      "fraction of the teacher's accuracy and loss that is recovered (0: unigram baseline, 1: teacher), the error of "
      "each attention layer's output, and training cost. With finetune.benchmark_lengths it also holds speed and "
      "memory.\n"
      "Each stage is a run like that of furlong train; a finished stage is not repeated unless its directory is "
      "removed.\n"
      "SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 finish the step, save a checkpoint and exit with status 3.\n"
      "Keys of the config: furlong config reference, or docs/config.md, sections teacher and finetune.");
  command.examples({
      "furlong finetune configs/minilm_performer.yaml",
      "furlong finetune configs/smollm2_performer.yaml --stage attention_transfer --run-dir runs/chat",
  });
  command.action([options, &status] { status = run(*options); });
}

}  // namespace furlong::command_line
