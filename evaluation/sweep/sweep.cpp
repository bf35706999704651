#include "evaluation/sweep/sweep.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "evaluation/run_check.h"
#include "evaluation/sweep/sweep_file.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/log.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

std::string override_of(const SweepValue& setting) { return setting.key + "=" + setting.text; }

/// Reads the settings of one run. An error in one of its own values names the place in the sweep file.
LoadedSettings load_run(const fs::path& file, const fs::path& base, const std::vector<SweepValue>& own,
                        const std::vector<std::string>& overrides) {
  std::vector<std::string> all;
  for (const SweepValue& setting : own) all.push_back(override_of(setting));
  const std::string described = config::join(all, " ");
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    return load_settings(base, all);
  } catch (const UserError& error) {
    const std::string_view message = error.what();
    for (const SweepValue& setting : own) {
      const std::string source = "--set " + override_of(setting) + ": ";
      if (message.starts_with(source)) throw UserError("{}: {}", setting.place.text(), message.substr(source.size()));
    }
    throw UserError("{}: run {}: {}", file.string(), described, message);
  }
}

/// Returns the key's present name.
std::string present_name(const config::Table& table, const std::string& key) {
  const config::Renaming* renaming = table.find_renamed(key);
  return renaming ? renaming->path : key;
}

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }  // npos + 1 is 0

/// Returns a value as part of a file name.
std::string name_text(const config::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return config::join(*list, "+");
  return config::to_text(value);
}

/// `last_parts`: number of keys with each last part.
std::string directory_name(const SweepRun& run, const std::map<std::string, std::size_t>& last_parts) {
  if (run.values.empty()) return "base";
  constexpr std::size_t most_bytes = 160;
  std::string name, exact;
  for (const auto& [key, value] : run.values) {
    const std::string label = last_parts.at(last_part(key)) == 1 ? last_part(key) : key;
    name += (name.empty() ? "" : ",") + label + "=" + name_text(value);
    exact += key + "=" + config::to_text(value) + "\n";
  }
  std::string safe = name.substr(0, most_bytes);
  for (char& c : safe) {
    const bool is_alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_alphanumeric && std::string_view("_+.-,=").find(c) == std::string_view::npos) c = '-';
  }
  return safe == name ? name : fmt::format("{}-{:08x}", safe, crc32c(exact));
}

void refuse_equal_runs(const fs::path& file, const std::vector<SweepRun>& runs) {
  std::map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto [earlier, is_new] = seen.emplace(json_line(to_json(runs[i].loaded.settings)), i);
    if (!is_new)
      throw UserError("{}: runs {} and {} have equal settings, {} and {}; remove one of the two", file.string(),
                      earlier->second + 1, i + 1, runs[earlier->second].name, runs[i].name);
  }
  std::set<std::string> names;
  for (const SweepRun& run : runs) {
    if (!names.insert(run.name).second)
      throw UserError("{}: two runs have the name {}, because a value contains ',' or '='; change one", file.string(),
                      run.name);
  }
}

SweepOutcome run_one(const SweepRun& run) {
  using State = SweepOutcome::State;
  try {
    if (has_finished(run.loaded.settings)) return {State::finished};
    const TrainResult result = train(run.loaded, {});
    return {result.interrupted ? State::interrupted : State::finished};
  } catch (const RunDirectoryInUse&) {
    log_info("{}: another process trains this run; skipped", run.name);
    return {State::in_use};
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const Error*>(&error);
    log_error("{}: {}", run.name, error.what());
    return {State::failed, error.what(), own ? own->exit_status() : 1};
  }
}

/// Throws UserError if a run was trained on other data, or if one that is not finished cannot be trained: its directory
/// has a run of other settings, or its dataset is missing or does not fit.
void check_run(const SweepRun& run) {
  refuse_other_results(run);
  try {
    if (has_finished(run.loaded.settings)) return;
  } catch (const DamagedCheckpoints&) {
    return;  // fails alone, in run_one()
  } catch (const UnusableFile&) {
    return;
  } catch (const MachineError&) {
    return;
  }
  if (const std::string missing = missing_data(run.loaded.settings.data); !missing.empty())
    throw UserError("{}: {} does not exist; expected a tokenized dataset, which furlong prepare writes", run.name,
                    missing);
  try {
    check_against_data(run.loaded, *open_data(run.loaded.settings.data));
  } catch (const UserError& error) {
    throw UserError("{}: {}", run.name, error.what());
  }
}

}  // namespace

void refuse_other_results(const SweepRun& run) {
  const Settings& settings = run.loaded.settings;
  try {
    refuse_other_run(settings);
  } catch (const DamagedCheckpoints&) {  // whoever trains the run reports it
  } catch (const UnusableFile&) {
  } catch (const MachineError&) {
  }
  std::string path;  // of the other data
  try {
    const std::unique_ptr<Dataset> data = open_data(settings.data);
    const std::optional<CheckpointReader> newest = open_newest_checkpoint(settings.run_directory / "checkpoints");
    if (newest && was_trained_on_other_data(*newest, *data).value_or(false)) path = data->path();
  } catch (const Error&) {
  }
  if (!path.empty())
    throw UserError("{}: was trained on other data than {} contains now; restore the data, or remove {}", run.name,
                    path, settings.run_directory.string());
}

std::vector<SweepRun> plan_sweep(const fs::path& file, const std::vector<std::string>& overrides) {
  const SweepFile sweep = read_sweep_file(file);
  for (const std::string& text : overrides) {
    if (text.starts_with("run_directory="))
      throw UserError("--set {}: the sweep sets run_directory; change output in {}", text, file.string());
  }
  std::vector<SweepRun> runs;
  std::map<std::string, std::size_t> last_parts;  // number of keys
  std::vector<std::string> keys;
  for (const std::vector<SweepValue>& own : sweep.runs) {
    SweepRun run{{}, {}, load_run(file, sweep.base, own, overrides)};
    const config::Table table = settings_table(run.loaded.as_set);
    for (const SweepValue& setting : own) {
      const std::string key = present_name(table, setting.key);
      run.values.emplace_back(key, table.find(key)->get());
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      keys.push_back(key);
      ++last_parts[last_part(key)];
    }
    runs.push_back(std::move(run));
  }
  for (SweepRun& run : runs) {
    if (!run.loaded.settings.finetune.source.empty())
      throw UserError("{}: {} finetunes a model in stages (finetune.source); a sweep trains", file.string(),
                      sweep.base.string());
    run.name = directory_name(run, last_parts);
    run.loaded.settings.run_directory.clear();
  }
  refuse_equal_runs(file, runs);
  for (SweepRun& run : runs) run.loaded.settings.run_directory = sweep.output / run.name;
  return runs;
}

std::vector<SweepOutcome> run_sweep(const std::vector<SweepRun>& runs) {
  for (const SweepRun& run : runs) check_run(run);  // before the work of other runs
  const StopRequests stop_requests;
  std::vector<SweepOutcome> outcomes(runs.size());
  for (std::size_t i = 0; i < runs.size() && !stop_requests.received(); ++i) {
    log_info("run {} of {}: {}", i + 1, runs.size(), runs[i].name);
    outcomes[i] = run_one(runs[i]);
    if (outcomes[i].state == SweepOutcome::State::interrupted) break;
  }
  return outcomes;
}

}  // namespace furlong
