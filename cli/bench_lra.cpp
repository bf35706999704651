// furlong bench lra: the table of Long Range Arena.
#include "cli/bench_lra.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention_options.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "cli/prepare_tasks.h"
#include "cli/text_output.h"
#include "evaluation/bench/bench_lra.h"
#include "evaluation/bench/lra_tasks.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/standard_streams.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/run/run_directory.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct BenchLraArguments {
  LraOptions lra{.configs = "configs/lra", .output = "runs/lra"};
  std::vector<std::string> tasks{"listops", "pathfinder"};
  std::vector<std::string> mechanisms{"softmax", "favor_positive", "favor_relu", "elu1", "linformer", "windowed"};
  std::vector<std::int64_t> samples;
  std::string json;
};

/// Returns the task, with the name of its stand-in.
template <class Row>
std::string task_cell(const Row& row) {
  return row.stand_in.empty() ? row.task : fmt::format("{} ({})", row.task, row.stand_in);
}

std::string head_text(std::size_t width) {
  return fmt::format("{:<{}}{:<17}{:>9}{:>16}{:>10}{:>10}{:>12}{:>9}{:>10}{:>12}\n", "task", width, "mechanism",
                     "accuracy", "95% interval", "baseline", "published", "tokens", "seconds", "peak MiB",
                     "parameters");
}

std::string row_text(const LraResult& result, std::size_t width) {
  const auto percent = [](double share) { return fmt::format("{:.2f}", 100 * share); };
  const Metric& accuracy = result.accuracy;
  return fmt::format("{:<{}}{:<17}{:>9}{:>16}{:>10}{:>10}{:>12}{:>9.0f}{:>10.1f}{:>12}\n", task_cell(result), width,
                     result.mechanism, percent(accuracy.value),
                     std::isfinite(accuracy.low) ? percent(accuracy.low) + " - " + percent(accuracy.high) : "-",
                     percent(result.baseline), result.published ? percent(*result.published) : "-", result.tokens,
                     result.seconds, static_cast<double>(result.peak_bytes) / (1 << 20), result.parameters);
}

Json as_json(const LraResult& result) {
  return {
      {"task", result.task},
      {"mechanism", result.mechanism},
      {"stand_in", result.stand_in.empty() ? Json() : Json(result.stand_in)},
      {"run_directory", result.run_directory.string()},
      {"dataset", result.dataset},
      {"dataset_options", result.dataset_options},
      {"config", result.config},
      {"accuracy", {{"value", result.accuracy.value}, {"low", result.accuracy.low}, {"high", result.accuracy.high}}},
      {"baseline_accuracy", result.baseline},
      {"published_accuracy", result.published ? Json(*result.published) : Json()},
      {"test_samples", result.test_samples},
      {"parameters", result.parameters},
      {"steps", result.steps},
      {"tokens", result.tokens},
      {"seconds", result.seconds},
      {"peak_bytes", result.peak_bytes}};
}

/// Returns published accuracies of tasks whose rows have none, since they are of other data.
std::string not_comparable_text(const std::vector<LraRun>& runs) {
  std::map<std::string, std::string> by_task;
  for (const LraRun& one : runs) {
    const std::optional<double> published = published_accuracy(one.task, one.mechanism);
    if (one.is_published || !published) continue;
    std::string& text = by_task[one.task];
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", one.mechanism, 100 * *published);
  }
  std::string lines;
  for (const auto& [task, text] : by_task)
    lines += fmt::format("Published for {} with other data, lengths or numbers of samples, so not comparable: {}.\n",
                         task, text);
  return lines;
}

int run(const BenchLraArguments& arguments) {
  continue_without_readers();
  const std::vector<LraRun> runs = plan_lra(arguments.tasks, arguments.mechanisms, arguments.lra);
  if (!arguments.json.empty()) {  // a wrong path fails before the work
    for (const LraRun& one : runs) {
      refuse_replacing_inputs(input_files(one.loaded), arguments.json, "--json-file");
      refuse_file_of_run(one.loaded.settings.run_directory, arguments.json, "--json-file");
    }
    refuse_replacing_data(arguments.json, "--json-file");
    const AtomicFile probe(arguments.json);
  }
  const Machine machine = read_machine();
  Json object{{"furlong", {{"version", version()}, {"commit", commit()}}},
              {"machine", {{"cpu", machine.cpu.model}, {"kernel", machine.kernel}}},
              {"size", arguments.lra.size},
              {"bootstrap_resamples", arguments.lra.bootstrap.resamples},
              {"results", Json::array()}};
  Json& results = object["results"];
  std::size_t width = 11;
  bool has_stand_in = false;
  for (const LraRun& one : runs) {
    width = std::max(width, task_cell(one).size() + 2);
    has_stand_in = has_stand_in || !one.stand_in.empty();
  }
  LraBaselines baselines;
  bool printed = true, written = false;  // the whole table
  for (const LraRun& one : runs) {
    const LraResult result = bench_lra(one, arguments.lra, baselines);
    if (result.interrupted) {
      print_message(fmt::format("stopped by a signal, saved in {}\nrun the same command again to resume\n",
                                result.run_directory.string()));
      return 3;
    }
    const std::string head = results.empty() ? head_text(width) : "";
    results.push_back(as_json(result));
    object["machine"]["threads"] = thread_count();  // of the config
    written = !arguments.json.empty() && write_when_free(arguments.json, json_text(object));
    printed = print_message(head + row_text(result, width)) && printed;
  }
  const std::string notes =
      "Accuracy in percent, on the test split. Published: Tay et al. 2020, Table 1; docs/lra.md lists differences.\n" +
      not_comparable_text(runs) + (has_stand_in ? "In parentheses: other data that stand in for the task's.\n" : "");
  printed = print_message(notes) && printed;
  if (!printed && !written) throw_lost_table();
  return 0;
}

}  // namespace

void add_bench_lra(Command bench, int& status) {
  const Command command =
      bench.add_subcommand("lra", "Train and measure models on Long Range Arena, next to the published accuracies");
  command.footer(
      "Trains TASK_SIZE.yaml of --configs with each mechanism in turn and measures the best checkpoint on the test "
      "split. The same command again continues: finished runs are only measured. Runs of other settings are "
      "refused. Missing datasets of listops, pathfinder and pathx are generated; those of text, retrieval and image "
      "come from files (docs/lra.md).\n"
      "local is softmax in a window of 64 tokens; windowed adds favor_positive beyond the window. Other names are "
      "feature maps of linear attention.");
  command.examples({
      "furlong bench lra --tasks listops --mechanisms softmax,favor_positive",
      "furlong bench lra --tasks text,retrieval,image --size published",
      "furlong bench lra --set trainer.max_steps=200 --output runs/try --json-file lra.json",
  });
  const auto arguments = std::make_shared<BenchLraArguments>();
  LraOptions& lra = arguments->lra;
  command.add_option("--tasks", arguments->tasks, fmt::format("Tasks: {}", fmt::join(lra_tasks(), ", ")))
      .shows_default()
      .separated_by(',')
      .one_of(lra_tasks())
      .value_name("NAME,...");
  command
      .add_option("--mechanisms", arguments->mechanisms,
                  fmt::format("Mechanisms: {}", fmt::join(lra_mechanisms(), ", ")))
      .shows_default(fmt::format("{}", fmt::join(arguments->mechanisms, ", ")))
      .separated_by(',')
      .one_of(lra_mechanisms())
      .value_name("NAME,...");
  command
      .add_option("--size", lra.size,
                  "desk: 2 layers of width 128, 20 M tokens; published: as docs/lra.md describes; or another SIZE of "
                  "--configs")
      .shows_default();
  command.add_option("--configs", lra.configs, "Folder of the configs TASK_SIZE.yaml")
      .shows_default()
      .value_name("DIR");
  command.add_option("--output", lra.output, "Folder of the runs TASK_SIZE_MECHANISM")
      .shows_default()
      .value_name("DIR");
  command
      .add_option("--samples", arguments->samples,
                  "Samples of generated datasets: of train, validation and test (default: as published)")
      .separated_by(',')
      .value_name("N,N,N");
  command
      .add_option("--test-samples", lra.test_samples,
                  "Measure this many samples of the test split, rounded up to whole batches; 0: all")
      .shows_default()
      .range(0, 1000000000)
      .value_name("N");
  command.add_option("--bootstrap", lra.bootstrap.resamples, "Resamples for the 95% confidence intervals; 0: none")
      .shows_default()
      .range(0, 1000000)
      .value_name("N");
  add_overrides(command, lra.overrides, "trainer.max_steps=200");
  command.add_option("--json-file", arguments->json, "Write the results to this file as JSON, again after each row")
      .value_name("FILE")
      .common();
  command.action([arguments, &status] {
    refuse_twice("--tasks", arguments->tasks);
    refuse_twice("--mechanisms", arguments->mechanisms);
    if (!arguments->samples.empty()) arguments->lra.samples = samples_of_splits(arguments->samples);
    status = run(*arguments);
  });
}

}  // namespace furlong::command_line
