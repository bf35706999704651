// furlong train: trains a model from a YAML config.

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/in_job.h"
#include "cli/json_output.h"
#include "cli/text_output.h"
#include "datasets/prepare/text_stream.h"
#include "datasets/tokenized_dataset.h"
#include "evaluation/generate.h"
#include "framework/core/device.h"
#include "framework/core/log.h"
#include "framework/core/standard_streams.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"

namespace furlong::command_line {
namespace {

struct TrainArguments {
  std::string config, run_directory, resume = "auto", trace, trace_steps = "3-6";
  std::vector<std::string> overrides;
  bool json = false, allow_new_data = false;
};

/// A signal ends the sample: the run is saved, and a cluster soon kills what does not end.
void print_sample(const Settings& settings, const std::filesystem::path& checkpoint, const StopRequests& requests) {
  if (settings.trainer.sample_tokens == 0) return;
  Model model =
      load_model(CheckpointReader::open(checkpoint), device_from_name(settings.device), Weights::ema_if_present);
  model.stream.products.tf32 = settings.tf32;
  GenerateOptions options;
  options.max_tokens = settings.trainer.sample_tokens;
  options.temperature = 0.8;
  options.seed = static_cast<std::uint64_t>(settings.seed);
  const std::vector<std::int32_t> prompt = model.vocabulary.encode_prompt(settings.trainer.sample_prompt);
  const Generated generated = generate(model, prompt, options, {.stop_requested = [&] { return requests.received(); }});
  print_message(fmt::format("sample at temperature 0.8:\n{}{}\n\n", settings.trainer.sample_prompt,
                            continuation_text(model.vocabulary, prompt, generated.samples[0])));
}

int run(const TrainArguments& options) {
  // From the start: a rank that a signal ended at once would leave the others waiting. Also while the sample is
  // generated.
  const StopRequests stop_requests;
  continue_without_readers();
  TrainOptions train_options;
  train_options.allow_new_data = options.allow_new_data;
  LoadedSettings loaded = in_job([&] {
    if (!options.trace.empty()) {
      train_options.trace.emplace();
      train_options.trace->path = options.trace;
      refuse_replacing_data(options.trace, "--trace");
      parse_trace_steps(options.trace_steps, *train_options.trace);
    }
    return load_settings(options.config, options.overrides);
  });
  if (!options.run_directory.empty()) loaded.settings.run_directory = options.run_directory;
  if (options.resume == "never") {
    train_options.resume = TrainOptions::Resume::never;
  } else if (options.resume != "auto") {
    train_options.resume = TrainOptions::Resume::path;
    train_options.checkpoint = options.resume;
  }
  if (!options.json) {
    train_options.before_leaving = [&](const TrainResult& result) {
      if (result.interrupted || stop_requests.received()) return;
      try {
        print_sample(loaded.settings, result.checkpoint, stop_requests);
      } catch (const std::exception& error) {
        log_warn("cannot generate a sample: {}", error.what());  // training is finished and saved
      }
    };
  }
  const TrainResult result = train(loaded, train_options);
  if (!result.is_first) {
    // rank 0 prints the result
  } else if (options.json) {
    const nlohmann::ordered_json object{{"step", result.step},
                                        {"interrupted", result.interrupted},
                                        {"stopped_early", result.stopped_early},
                                        {"train_loss", result.train_loss},
                                        {"validation_loss", result.validation_loss},
                                        {"run_directory", result.run_directory.string()},
                                        {"checkpoint", result.checkpoint.string()}};
    print_json(object);
  } else {
    print_message(fmt::format("{} at step {}; the run is in {}\n",
                              result.interrupted     ? "stopped by a signal, saved"
                              : result.stopped_early ? "stopped early"
                                                     : "done",
                              result.step, result.run_directory.string()));
    // --resume would start again from the same place.
    if (result.interrupted)
      print_message(options.resume == "auto" ? "run the same command again to resume\n"
                                             : "to resume, run the command again without --resume\n");
  }
  return result.interrupted ? 3 : 0;
}

}  // namespace

void add_train(Command program, int& status) {
  const Command command = program.add_subcommand("train", "Train a model from a YAML config, or resume a run");
  const auto options = std::make_shared<TrainArguments>();
  command.add_option("config", options->config, "YAML file").required().value_name("CONFIG");
  add_overrides(command, options->overrides, "trainer.max_steps=1000");
  command
      .add_option(
          "--run-dir", options->run_directory,
          "Directory for config.yaml, metrics.jsonl, tensorboard/ and checkpoints/ (default: run_directory of the "
          "config, or runs/NAME)")
      .value_name("DIR");
  command
      .add_option("--resume", options->resume,
                  "auto: continue from the newest complete checkpoint of the run directory, if any;\n"
                  "never: start from the beginning and remove the previous run;\n"
                  "PATH: start from this checkpoint, or from the newest one of this run directory. The directory of "
                  "--run-dir must hold no checkpoints of another run. If it holds later checkpoints of the same run, "
                  "they are deleted")
      .shows_default()
      .value_name("auto|never|PATH");
  command.add_flag("--allow-new-data", options->allow_new_data,
                   "Resume even if the dataset differs from that of the checkpoint");
  const Option trace =
      command
          .add_option(
              "--trace", options->trace,
              "Write a timeline of all ranks for some steps to this file, for https://ui.perfetto.dev or "
              "chrome://tracing. It shows data loading, forward and backward of each operation, gradient buckets, "
              "optimizer, validation and checkpoints. On GPUs, it shows when work was launched")
          .value_name("FILE");
  command
      .add_option("--trace-steps", options->trace_steps,
                  "Steps to trace, counted from the start of this command. The first steps also allocate memory")
      .shows_default()
      .needs(trace)
      .value_name("A-B");
  add_json(command, options->json, "Print the result as JSON, without a sample");
  command.footer(
      "The same command again, without --resume, resumes the run. SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 finish "
      "the step, save a checkpoint and exit with status 3. A second Ctrl-C exits at once.\n"
      "Keys of the config: furlong config reference, or docs/config.md.");
  command.examples({
      "furlong train configs/quickstart.yaml",
      "furlong train configs/quickstart.yaml --set trainer.max_steps=1000 --run-dir runs/long",
  });
  command.action([options, &status] { status = run(*options); });
}

}  // namespace furlong::command_line
