#pragma once
// What the files of a run directory say about a training. Only reads, and takes no lock: the training may be running.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// The lines of metrics.jsonl of one split, as columns of equal length. Values that were not measured are NaN.
struct MetricColumns {
  std::vector<double> step, tokens;
  /// Seconds of training until each line, without validation and interruptions; known for the split `train`.
  std::vector<double> seconds;
  std::map<std::string, std::vector<double>> values;  ///< every other key: loss, learning_rate, ...
};

enum class RunState : std::uint8_t {
  /// A training of this machine holds the lock, or one that has not ended in order wrote metrics during the last two
  /// minutes: on another host, on a file system without locks, or killed.
  running,
  finished,  ///< took all its steps, or stopped early, and saved the last one
  stopped,   ///< ended before: by a signal or an error
};
std::string_view name_of(RunState state);

/// A run directory of furlong train, or a stage of furlong finetune.
struct RunFiles {
  std::filesystem::path path;
  RunState state = RunState::stopped;
  std::map<std::string, MetricColumns> splits;           ///< by name: train, validation, test
  std::map<std::string, nlohmann::ordered_json> config;  ///< every key with an effect, "model.d_model": 256; empty if
                                                         ///< unreadable
  std::string config_text;                               ///< config.yaml; empty if there is none
  std::int64_t step = 0, max_steps = 0;                  ///< max_steps: 0 if unknown
  bool stopped_early = false;                            ///< trainer.early_stopping_patience ended the training
  /// Lowest validation loss and its step.
  double best_loss = std::numeric_limits<double>::quiet_NaN();
  std::int64_t best_step = 0;
  std::int64_t validations_since_best = 0;
  std::filesystem::file_time_type changed;  ///< of metrics.jsonl
  std::vector<std::string> problems;        ///< files that could not be read, one line each

  /// The last value of a key, NaN if there is none.
  double last(const std::string& split, const std::string& key) const;
  /// The peak of all lines, because each resume starts it anew; NaN if unknown.
  double peak_bytes() const;
  double tokens() const;   ///< trained on
  double seconds() const;  ///< of training
};

/// Returns a value of RunFiles::config as text.
std::string text_of_value(const nlohmann::ordered_json& value);

/// Reads a run directory: metrics.jsonl and config.yaml. Ignores a torn last line. Throws UserError if there is no
/// metrics.jsonl, or if it is unreadable or longer than 1 GiB.
RunFiles read_run(const std::filesystem::path& directory);

/// Returns the run directories in `folder`, at most `depth` levels below it, and `folder` itself if it is one: folders
/// with a metrics.jsonl. Sorted by path. Throws UserError if `folder` is not a readable folder.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder, int depth = 4);

/// Whether furlong finetune wrote this directory: it has finetune.json or recovery.json.
bool is_finetune_directory(const std::filesystem::path& directory);

/// Reads the file of furlong bench lra --json-file. Throws UserError if it is missing or something else.
nlohmann::ordered_json read_lra(const std::filesystem::path& file);

/// recovery.json of a furlong finetune directory; null if there is none. Throws UserError if it is not JSON.
nlohmann::ordered_json read_recovery(const std::filesystem::path& directory);

}  // namespace furlong
