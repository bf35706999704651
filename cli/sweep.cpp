// furlong sweep: trains one model for each combination of settings, and compares them.
#include "evaluation/sweep/sweep.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/in_job.h"
#include "cli/json_output.h"
#include "cli/run_table.h"
#include "cli/text_output.h"
#include "evaluation/run_check.h"
#include "framework/core/log.h"
#include "framework/core/standard_streams.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"
#include "trainers/train/validation.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;
using State = SweepOutcome::State;

struct SweepArguments {
  std::string file, json;
  std::vector<std::string> overrides;
  std::int64_t index = 0;  ///< from 1; 0: all
  bool dry_run = false;
};

const std::vector<std::string> columns{"run", "state", "step", "best", "best_step", "rate", "seconds"};
constexpr std::size_t state_column = 1, best_column = 3;
constexpr const char* resume_hint = "stopped by a signal, saved; run the same command again to resume\n";

/// The table's row of a run: what its files say, and what this command did.
struct Row {
  std::vector<Cell> cells;
  Json json;
};

std::string state_of(const SweepOutcome& outcome, const RunFiles* files) {
  switch (outcome.state) {
    case State::finished:  // also after early stopping
      return "finished";
    case State::failed:
      return "failed";
    case State::interrupted:
      return "stopped";
    case State::in_use:  // the other process may have finished it by now
    case State::not_run:
      break;
  }
  if (files) return std::string(name_of(files->state));
  return outcome.state == State::in_use ? "running" : "not started";
}

Json json_of(const config::Value& value) {
  return std::visit(
      [](const auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, std::monostate>)
          return Json();
        else
          return Json(one);
      },
      value);
}

Row row_of(const SweepRun& run, const SweepOutcome& outcome) {
  const std::filesystem::path& directory = run.loaded.settings.run_directory;
  std::optional<RunFiles> files;
  if (std::filesystem::exists(directory / "metrics.jsonl")) files = read_run(directory);
  Row row;
  for (const std::string& column : columns) {
    if (column == "run")
      row.cells.push_back({run.name});
    else if (column == "state")
      row.cells.push_back({state_of(outcome, files ? &*files : nullptr)});
    else
      row.cells.push_back(files ? cell_of(*files, directory, column) : Cell{"-"});
  }
  Json values = Json::object();
  for (const auto& [key, value] : run.values) values[key] = json_of(value);
  row.json = as_json(row.cells, columns);
  row.json["settings"] = std::move(values);
  row.json["run_directory"] = directory.string();
  if (outcome.state == State::failed) row.json["error"] = outcome.error;
  return row;
}

/// Lowest validation losses of runs that differ only in their seed.
struct Group {
  std::string name;  ///< the settings
  Json settings = Json::object();
  std::vector<double> best;

  double mean() const { return std::accumulate(best.begin(), best.end(), 0.0) / static_cast<double>(best.size()); }
  /// The standard deviation, with n - 1; NaN of one run.
  double deviation() const {
    double squares = 0;
    for (const double one : best) squares += (one - mean()) * (one - mean());
    return best.size() > 1 ? std::sqrt(squares / static_cast<double>(best.size() - 1))
                           : std::numeric_limits<double>::quiet_NaN();
  }
};

/// Returns the groups of finished runs with a validation loss, the lowest mean first; none if no group has two runs.
std::vector<Group> groups_of(const std::vector<SweepRun>& runs, const std::vector<Row>& rows) {
  std::map<std::string, Group> by_name;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double best = rows[i].cells[best_column].number;
    if (rows[i].cells[state_column].text != "finished" || !std::isfinite(best)) continue;
    Group group;
    for (const auto& [key, value] : std::map(runs[i].values.begin(), runs[i].values.end())) {
      if (key == "seed") continue;
      group.name += fmt::format("{}{}={}", group.name.empty() ? "" : " ", key, config::to_text(value));
      group.settings[key] = json_of(value);
    }
    if (group.name.empty()) group.name = "base";
    by_name.try_emplace(group.name, group).first->second.best.push_back(best);
  }
  std::vector<Group> groups;
  for (auto& [name, group] : by_name) groups.push_back(std::move(group));
  if (std::none_of(groups.begin(), groups.end(), [](const Group& one) { return one.best.size() > 1; })) return {};
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.mean() < b.mean(); });
  return groups;
}

/// Checks that the file can be written, before the work. Another process of the sweep may be writing it.
void probe_json(const std::string& path) {
  try {
    const AtomicFile probe(path);
  } catch (const FileInUse&) {
  }
}

/// Prints one table over all runs, the lowest validation loss first, and one of means over seeds. Writes both as JSON.
/// Returns false if neither standard output nor a file has them.
bool write_results(const std::vector<SweepRun>& runs, const std::vector<SweepOutcome>& outcomes,
                   const SweepArguments& options) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) rows.push_back(row_of(runs[i], outcomes[i]));
  const std::vector<Group> groups = groups_of(runs, rows);
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return comes_before(a.cells[best_column], b.cells[best_column]);
  });
  std::vector<std::vector<Cell>> cells;
  Json object{
      {"furlong", {{"version", version()}, {"commit", commit()}}}, {"sweep", options.file}, {"runs", Json::array()}};
  for (Row& row : rows) {
    cells.push_back(std::move(row.cells));
    object["runs"].push_back(std::move(row.json));
  }
  std::string tables = table_text(cells, columns);
  std::vector<std::vector<Cell>> means;
  for (const Group& group : groups) {
    means.push_back({{group.name},
                     text_cell(std::to_string(group.best.size())),
                     number_cell(group.mean()),
                     number_cell(group.deviation(), "{:.2g}")});
    object["means"].push_back({{"settings", group.settings},
                               {"seeds", group.best.size()},
                               {"mean", group.mean()},
                               {"deviation", group.deviation()}});
  }
  if (!means.empty()) tables += "\n" + table_text(means, {"best, over seeds", "seeds", "mean", "deviation"});
  const bool printed = print_message(tables);
  const bool written = !options.json.empty() && write_when_free(options.json, json_text(object));
  return printed || written;
}

/// Warns if the runs may validate different parts of the validation split, which changes the order of the table.
void warn_about_validation(const std::vector<SweepRun>& runs) {
  // What a row is, rows or tokens in all (0: the whole split), and the length at which documents are cut.
  std::set<std::tuple<std::string, std::int64_t, std::int64_t>> parts;
  bool limited = false;
  for (const SweepRun& run : runs) {
    const Settings& settings = run.loaded.settings;
    const DataSettings& data = settings.data;
    const std::int64_t rows = settings.trainer.validation_batches * data.batch_size;
    limited = limited || rows > 0;
    if (settings.objective.learns_labels())
      parts.emplace("labels", rows, 0);
    else if (data.sampler == "documents")
      parts.emplace(data.sampler, rows, data.sequence_length);
    else if (data.sampler == "stream")
      parts.emplace(data.sampler, data.batch_size, rows * data.sequence_length);
    else
      parts.emplace("windows", rows * data.sequence_length, 0);
  }
  if (limited && parts.size() > 1)
    log_warn(
        "the runs differ in data.batch_size, data.sequence_length, data.sampler or trainer.validation_batches. If the "
        "validation split is larger, they read different parts of it, and their losses do not compare; "
        "trainer.validation_batches=0 reads the whole split");
}

/// Warns if validations of the runs measure different targets, so that the order of the table means nothing.
void warn_about_targets(const std::vector<SweepRun>& runs) {
  const Settings& first = runs.front().loaded.settings;
  const auto validated = [](const Settings& settings) {  // of a mixture the first dataset
    const std::vector<DataSource> mixture = settings.data.mixture();
    return mixture.empty() ? std::filesystem::path() : mixture.front().dataset;
  };
  std::set<std::string> keys;
  for (const SweepRun& run : runs) {
    const Settings& settings = run.loaded.settings;
    for (std::string& key : changed_targets(first, settings)) keys.insert(std::move(key));
    if (validated(settings) != validated(first))
      keys.insert(settings.data.sources.empty() ? "data.dataset" : "data.sources");
  }
  if (!keys.empty())
    log_warn("the runs differ in {}, so their validations measure different targets, and their losses do not compare",
             config::join(std::vector<std::string>(keys.begin(), keys.end()), ", "));
}

void print_plan(const std::vector<SweepRun>& runs) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::string overrides;
    for (const auto& [key, value] : runs[i].values)
      overrides += fmt::format(" --set {}={}", key, config::to_text(value));
    print_text(fmt::format("{:>{}}  {} {}\n", i + 1, std::to_string(runs.size()).size(), runs[i].name, overrides));
    if (const std::string missing = missing_data(runs[i].loaded.settings.data); !missing.empty())
      log_warn("{}: {} does not exist yet; furlong prepare writes tokenized datasets", runs[i].name, missing);
  }
}

/// Trains the run of --index, on one or several ranks. An error ends the command like that of furlong train.
int run_one(const std::vector<SweepRun>& runs, const SweepArguments& options) {
  const auto index = static_cast<std::size_t>(options.index - 1);
  log_info("run {} of {}: {}", options.index, runs.size(), runs[index].name);
  bool written = true;
  std::exception_ptr failure;
  TrainOptions train_options;
  train_options.before_leaving = [&](const TrainResult& done) {  // a launcher ends ranks that run longer than others
    if (done.interrupted) return;
    std::vector<SweepOutcome> outcomes(runs.size());
    outcomes[index].state = State::finished;
    try {
      written = write_results(runs, outcomes, options);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  };
  const TrainResult result = train(runs[index].loaded, train_options);
  if (result.interrupted) {
    if (result.is_first) print_message(resume_hint);
    return 3;
  }
  if (failure) std::rethrow_exception(failure);
  if (!written) throw_lost_table();
  return 0;
}

int run_all(const std::vector<SweepRun>& runs, const SweepArguments& options) {
  const std::vector<SweepOutcome> outcomes = run_sweep(runs);
  const bool written = write_results(runs, outcomes, options);
  if (std::any_of(outcomes.begin(), outcomes.end(), [](const SweepOutcome& one) {
        return one.state == State::interrupted || one.state == State::not_run;
      })) {
    print_message(resume_hint);
    return 3;
  }
  std::vector<std::string> failed;
  int status = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (outcomes[i].state != State::failed) continue;
    failed.push_back(runs[i].name);
    if (status == 0) status = outcomes[i].exit_status;
  }
  if (failed.empty() && !written) throw_lost_table();
  if (failed.empty()) return 0;
  const std::string message =
      fmt::format("{} of {} runs failed: {}", failed.size(), runs.size(), config::join(failed, ", "));
  if (status == 2) throw UserError("{}", message);
  throw MachineError("{}", message);
}

/// Returns the sweep's file, and the configs and datasets that its runs read.
std::vector<std::string> inputs_of(const std::string& file, const std::vector<SweepRun>& runs) {
  std::vector<std::string> inputs{file};
  for (const SweepRun& run : runs) {
    const std::vector<std::string> of_run = input_files(run.loaded);
    inputs.insert(inputs.end(), of_run.begin(), of_run.end());
  }
  return inputs;
}

int run(const SweepArguments& options) {
  std::optional<StopRequests> stop_requests;  // from the start, as in furlong train
  if (!options.dry_run) stop_requests.emplace();
  continue_without_readers();
  const std::vector<SweepRun> runs = in_job([&] {
    const LaunchEnvironment environment = discover_launch();
    if (environment.world_size > 1 && options.index == 0)
      throw UserError("{} ranks were started, but several runs; pass --index K to train one run on all ranks",
                      environment.world_size);
    std::vector<SweepRun> planned = plan_sweep(options.file, options.overrides);
    if (static_cast<std::size_t>(options.index) > planned.size())
      throw UserError("--index {}: {} has {} runs; expected a number from 1 to {}", options.index, options.file,
                      planned.size(), planned.size());
    if (options.index > 0) {
      for (const SweepRun& one : planned) refuse_other_results(one);  // they share one table
    }
    refuse_replacing_inputs(inputs_of(options.file, planned), options.json, "--json-file");
    refuse_replacing_data(options.json, "--json-file");
    for (const SweepRun& one : planned)
      if (!options.json.empty()) refuse_file_of_run(one.loaded.settings.run_directory, options.json, "--json-file");
    if (!options.json.empty() && environment.rank == 0) probe_json(options.json);
    return planned;
  });
  if (options.index == 0) {
    warn_about_targets(runs);
    warn_about_validation(runs);
  }
  if (options.dry_run) {
    print_plan(runs);
    return 0;
  }
  return options.index > 0 ? run_one(runs, options) : run_all(runs, options);
}

}  // namespace

void add_sweep(Command program, int& status) {
  const Command command =
      program.add_subcommand("sweep", "Train a model for each combination of settings, and compare them in one table");
  const auto options = std::make_shared<SweepArguments>();
  command.add_option("sweep", options->file, "YAML file with base, grid, list and output")
      .required()
      .value_name("SWEEP");
  add_overrides(command, options->overrides, "trainer.max_steps=1000");
  const Option index = command
                           .add_option("--index", options->index,
                                       "Train only this run, by its number in --dry-run: for array jobs. It can use "
                                       "several ranks")
                           .range(1, 10000)
                           .value_name("K");
  command.add_flag("--dry-run", options->dry_run, "Check all settings, and list the runs with names and settings")
      .excludes(index);
  command.add_option("--json-file", options->json, "Write the table to this file as JSON")
      .excludes(command.option("--dry-run"))
      .value_name("FILE")
      .common();
  command.footer(
      "base is a config, relative to the sweep's file. grid has a list of values for each config key, list a list of "
      "maps from config keys to values. The runs are all combinations, in directories of output (default: runs/ and "
      "the file's name) that are named after the values. All settings and datasets are checked before the first run.\n"
      "Runs train in turn. The same command again skips finished runs and resumes the others; a directory with a run "
      "of other settings is refused. After a failed run the others continue, and the sweep ends with status 1 or 2. "
      "SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 save and stop the sweep with status 3. Several processes can train "
      "runs of one sweep at the same time; sbatch --array=1-N scripts/slurm/train.sbatch SWEEP starts one for each "
      "run.\n"
      "The table has the columns of furlong runs, the lowest validation loss first. If finished runs differ only in "
      "their seed, a second table has mean and standard deviation of their lowest losses.");
  command.examples({
      "furlong sweep sweep.yaml --dry-run",
      "furlong sweep sweep.yaml --set trainer.max_steps=500 --json-file sweep.json",
  });
  command.action([options, &status] { status = run(*options); });
}

}  // namespace furlong::command_line
