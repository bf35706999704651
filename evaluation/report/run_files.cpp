#include "evaluation/report/run_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <tuple>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "framework/io/json_bounds.h"
#include "framework/io/text_file.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

constexpr std::uint64_t max_metrics_bytes = std::uint64_t{1} << 30, max_config_bytes = std::uint64_t{1} << 24;
constexpr std::size_t max_columns = 256, max_splits = 16;
constexpr double not_measured = std::numeric_limits<double>::quiet_NaN();

/// Returns nothing for a line that is not a metrics object: a torn last line, or remains of a damaged disk.
nlohmann::json metrics_object(std::string_view line, const std::string& origin) {
  if (line.size() > (1 << 16)) return {};
  try {
    foreign::check_json_depth(line, origin);
  } catch (const UserError&) {
    return {};
  }
  nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  const bool valid = object.is_object() && object.value("step", nlohmann::json()).is_number() &&
                     object.value("split", nlohmann::json()).is_string();
  return valid ? object : nlohmann::json();
}

/// Returns whether all keys have columns. Further ones would take memory that grows with keys times lines.
bool append(MetricColumns& columns, const nlohmann::json& object) {
  bool has_all = true;
  const std::size_t rows = columns.step.size();
  const auto number = [&](const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_number() ? found->get<double>() : not_measured;
  };
  const double tokens = number("tokens"), rate = number("tokens_per_second");
  const double new_tokens = tokens - (rows > 0 ? columns.tokens.back() : 0);
  const double before = rows > 0 ? columns.seconds.back() : 0;
  columns.seconds.push_back(rate > 0 && new_tokens > 0 ? before + new_tokens / rate : before);
  columns.step.push_back(number("step"));
  columns.tokens.push_back(tokens);
  for (const auto& [key, value] : object.items()) {
    if (key == "step" || key == "tokens" || key == "split") continue;
    if (columns.values.size() >= max_columns && !columns.values.contains(key) && key != "loss") {
      has_all = false;
      continue;
    }
    std::vector<double>& column = columns.values[key];
    column.resize(rows, not_measured);  // lines before the first with this key
    column.push_back(value.is_number() ? value.get<double>() : not_measured);
  }
  for (auto& [key, column] : columns.values) column.resize(rows + 1, not_measured);
  return has_all;
}

void read_metrics(RunFiles& run) {
  const std::filesystem::path file = run.path / "metrics.jsonl";
  const std::string text = read_text_file(file, max_metrics_bytes);
  std::int64_t invalid = 0;
  bool has_all = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // a line that is being written
    const nlohmann::json object = metrics_object(std::string_view(text).substr(begin, end - begin), file.string());
    begin = end + 1;
    const std::string split = object.is_null() ? "" : object["split"].get<std::string>();
    if (split.empty() || (run.splits.size() == max_splits && !run.splits.contains(split)))
      ++invalid;
    else
      has_all &= append(run.splits[split], object);
  }
  if (!has_all)
    run.problems.push_back(
        fmt::format("{}: more than {} keys in a split; further ones are left out", file.string(), max_columns));
  if (invalid > 0)
    run.problems.push_back(
        fmt::format("{}: {} line{} not a metrics object", file.string(), invalid, invalid == 1 ? " is" : "s are"));
  for (const auto& [split, columns] : run.splits) {
    for (const double step : columns.step) run.step = std::max(run.step, static_cast<std::int64_t>(step));
  }
  const auto validation = run.splits.find("validation");
  if (validation == run.splits.end()) return;
  MetricColumns& columns = validation->second;
  const auto losses = columns.values.find("loss");
  if (losses == columns.values.end()) return;
  // Files of earlier versions have no `best`.
  const auto best = columns.values.find("best");
  for (std::size_t i = 0; i < columns.step.size(); ++i) {
    const double loss = losses->second[i];
    const bool is_best = best != columns.values.end() ? best->second[i] == 1 : !(loss >= run.best_loss);
    ++run.validations_since_best;
    if (!std::isnan(loss) && is_best) {
      run.validations_since_best = 0;
      run.best_loss = loss;
      run.best_step = static_cast<std::int64_t>(columns.step[i]);
    }
  }
  if (best != columns.values.end()) columns.values.erase(best);
}

/// Returns whether the run's last step has a checkpoint, or the folder of checkpoints was removed. A signal saves the
/// run between two lines of metrics.jsonl.
bool read_checkpoints(RunFiles& run) {
  std::error_code missing;
  std::int64_t saved = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run.path / "checkpoints", missing)) {
    if (const auto step = step_in_name(entry.path().filename().string())) saved = std::max(saved, *step);
  }
  run.step = std::max(run.step, saved);
  return missing || saved == run.step;
}

void flatten(const nlohmann::ordered_json& value, const std::string& path,
             std::map<std::string, nlohmann::ordered_json>& keys) {
  if (!value.is_object()) {
    keys[path] = value;
    return;
  }
  for (const auto& [name, member] : value.items()) flatten(member, path.empty() ? name : path + "." + name, keys);
}

void read_config(RunFiles& run) {
  const std::filesystem::path file = run.path / "config.yaml";
  std::error_code code;
  if (!std::filesystem::exists(file, code)) return;
  try {
    run.config_text = read_text_file(file, max_config_bytes);
    const Settings settings = from_checkpoint_text(run.config_text, file.string()).settings;
    flatten(to_json(settings), "", run.config);
    run.max_steps = settings.trainer.max_steps;
    const std::int64_t patience = settings.trainer.early_stopping_patience;
    // It ends the training at the step of the validation: a later step is one of a resumed training.
    run.stopped_early = patience > 0 && run.validations_since_best >= patience &&
                        run.splits.at("validation").step.back() >= static_cast<double>(run.step);
  } catch (const UserError& error) {
    run.problems.emplace_back(error.what());
  }
}

/// Returns the discarded value if the text is not JSON.
nlohmann::ordered_json read_json(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, max_config_bytes);
  foreign::check_ordered_json(text, file.string());
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

/// Whether a process of this machine holds a lock on the run's file .lock. Testing with flock() could make a training
/// that starts in this moment fail, so this reads the kernel's list.
bool is_locked(const std::filesystem::path& directory) {
  struct stat status {};
  if (::stat((directory / ".lock").c_str(), &status) != 0) return false;
  const std::string file = fmt::format(" {:02x}:{:02x}:{} ", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (line.find("FLOCK") != std::string::npos && line.find(file) != std::string::npos) return true;
  }
  return false;
}

/// Whether the last training did not end in order: one that does empties its lock file.
bool is_marked(const std::filesystem::path& directory) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(directory / ".lock", failure);
  return !failure && bytes > 0;
}

}  // namespace

std::string_view name_of(RunState state) {
  return state == RunState::running ? "running" : state == RunState::finished ? "finished" : "stopped";
}

double RunFiles::last(const std::string& split, const std::string& key) const {
  const auto columns = splits.find(split);
  if (columns == splits.end()) return not_measured;
  const auto column = columns->second.values.find(key);
  if (column == columns->second.values.end()) return not_measured;
  for (auto value = column->second.rbegin(); value != column->second.rend(); ++value) {
    if (std::isfinite(*value)) return *value;
  }
  return not_measured;
}

double RunFiles::peak_bytes() const {
  double peak = not_measured;
  for (const auto& [split, columns] : splits) {
    const auto found = columns.values.find("memory_bytes");
    if (found == columns.values.end()) continue;
    for (const double bytes : found->second) peak = std::fmax(peak, bytes);
  }
  return peak;
}

double RunFiles::tokens() const {
  const auto train = splits.find("train");
  return train == splits.end() || train->second.tokens.empty() ? 0 : train->second.tokens.back();
}

double RunFiles::seconds() const {
  const auto train = splits.find("train");
  return train == splits.end() || train->second.seconds.empty() ? 0 : train->second.seconds.back();
}

std::string text_of_value(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

RunFiles read_run(const std::filesystem::path& directory) {
  RunFiles run;
  run.path = directory;
  std::error_code code;
  if (!std::filesystem::exists(directory, code)) throw_missing(directory, "a run directory");
  if (!std::filesystem::is_directory(directory, code))
    throw UserError("{}: not a directory; expected a run directory", directory.string());
  const bool has_metrics = std::filesystem::exists(directory / "metrics.jsonl", code);
  if (code) throw UserError("{}: cannot read the directory: {}", directory.string(), code.message());
  if (!has_metrics)
    throw UserError(
        "{}: not a run directory: it has no metrics.jsonl; expected the run_directory of a training run's config",
        directory.string());
  read_metrics(run);
  const bool is_saved = read_checkpoints(run);
  read_config(run);
  run.changed = std::filesystem::last_write_time(directory / "metrics.jsonl", code);
  const auto age = std::filesystem::file_time_type::clock::now() - run.changed;  // negative if a clock was set back
  const bool recent = std::chrono::abs(age) < std::chrono::minutes(2);
  if (is_locked(directory) || (recent && is_marked(directory)))
    run.state = RunState::running;
  else if (is_saved && (run.stopped_early || (run.max_steps > 0 && run.step >= run.max_steps)))
    run.state = RunState::finished;
  return run;
}

std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder, int depth) {
  std::error_code code;
  constexpr const char* wanted = "the directory that holds your runs, which furlong train creates";
  if (!std::filesystem::exists(folder, code)) throw_missing(folder, wanted);
  if (!std::filesystem::is_directory(folder, code))
    throw UserError("{}: not a directory; expected {}", folder.string(), wanted);
  if (::access(folder.c_str(), R_OK | X_OK) != 0)
    throw UserError("{}: cannot read the directory: {}", folder.string(), std::generic_category().message(errno));
  std::vector<std::filesystem::path> runs;
  if (std::filesystem::exists(folder / "metrics.jsonl", code)) runs.push_back(folder);
  using Iterator = std::filesystem::recursive_directory_iterator;
  using Options = std::filesystem::directory_options;
  Iterator entries(folder, Options::skip_permission_denied | Options::follow_directory_symlink, code);
  if (code) throw UserError("{}: cannot read the directory: {}", folder.string(), code.message());
  for (; entries != Iterator(); entries.increment(code)) {
    if (code) break;
    if (entries->is_directory(code) && ::access(entries->path().c_str(), R_OK | X_OK) != 0) {
      log_warn("{}: cannot read the directory, whose runs are left out: {}", entries->path().string(),
               std::generic_category().message(errno));
      entries.disable_recursion_pending();
    }
    if (entries.depth() >= depth) entries.disable_recursion_pending();
    if (entries->path().filename() == "metrics.jsonl" && entries.depth() > 0)
      runs.push_back(entries->path().parent_path());
  }
  // Of a run that is also found through links, its own path or the shortest. `found` is by real path.
  const std::filesystem::path root = std::filesystem::weakly_canonical(folder, code);
  std::map<std::filesystem::path, std::tuple<bool, std::ptrdiff_t, std::filesystem::path>> found;
  for (const std::filesystem::path& run : runs) {
    const std::filesystem::path real = std::filesystem::weakly_canonical(run, code);
    const std::filesystem::path inside = run == folder ? root : root / run.lexically_relative(folder);
    const std::tuple candidate(real != inside, std::distance(run.begin(), run.end()), run);
    const auto [known, is_new] = found.try_emplace(real, candidate);
    if (!is_new) known->second = std::min(known->second, candidate);
  }
  runs.clear();
  for (const auto& [real, run] : found) runs.push_back(std::get<2>(run));
  std::sort(runs.begin(), runs.end());
  return runs;
}

bool is_finetune_directory(const std::filesystem::path& directory) {
  std::error_code code;
  return std::filesystem::exists(directory / "finetune.json", code) ||
         std::filesystem::exists(directory / "recovery.json", code);
}

nlohmann::ordered_json read_recovery(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "recovery.json";
  std::error_code code;
  if (!std::filesystem::exists(file, code)) return {};
  nlohmann::ordered_json object = read_json(file);
  if (!object.is_object()) throw UserError("{}: not a JSON object; furlong finetune writes this file", file.string());
  return object;
}

nlohmann::ordered_json read_lra(const std::filesystem::path& file) {
  nlohmann::ordered_json object = read_json(file);
  const auto are_numbers = [](const nlohmann::ordered_json& json, std::initializer_list<const char*> keys) {
    return std::all_of(keys.begin(), keys.end(), [&](const char* key) {
      return !json.contains(key) || json[key].is_number() || json[key].is_null();
    });
  };
  const auto is_result = [&](const nlohmann::ordered_json& result) {
    return result.is_object() && result.contains("task") && result["task"].is_string() &&
           result.contains("mechanism") && result["mechanism"].is_string() && result.contains("accuracy") &&
           result["accuracy"].is_object() && are_numbers(result["accuracy"], {"value", "low", "high"}) &&
           are_numbers(result, {"baseline_accuracy", "published_accuracy", "seconds", "peak_bytes"});
  };
  const bool valid = object.is_object() && object.contains("results") && object["results"].is_array() &&
                     std::all_of(object["results"].begin(), object["results"].end(), is_result);
  if (!valid)
    throw UserError("{}: not results of Long Range Arena; expected the file of furlong bench lra --json-file",
                    file.string());
  return object;
}

}  // namespace furlong
