#pragma once
// Long Range Arena: trains a model for each task and mechanism, and measures its accuracy. `furlong bench lra`.
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/label_metrics.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Options of bench_lra().
struct LraOptions {
  std::string size = "desk";                  ///< of models and training: SIZE in the names of configs
  std::filesystem::path configs{}, output{};  ///< folders of TASK_SIZE.yaml, and of the runs TASK_SIZE_MECHANISM
  std::vector<std::string> overrides{};       ///< of keys of all configs
  /// Of the splits of a generated dataset; nullopt: as published.
  std::optional<std::array<std::uint64_t, 3>> samples{};
  std::int64_t test_samples = 2000;  ///< at most, in whole batches; 0: all
  Bootstrap bootstrap{};
};

/// A model to train, whose config is checked and whose dataset exists or is generated.
struct LraRun {
  std::string task, mechanism;
  LoadedSettings loaded;  ///< with the run directory
  /// Name of the dataset that stands in for the official files of a task; empty: the dataset is generated, or can be
  /// the official one.
  std::string stand_in{};
  bool is_published = false;  ///< the dataset and its length can be the paper's
};

/// A trained and measured model.
struct LraResult {
  std::string task, mechanism, stand_in{};  ///< as in LraRun
  std::filesystem::path run_directory{};
  bool interrupted = false;  ///< training was stopped by a signal; nothing below is measured
  Metric accuracy{};         ///< on the test split, of the best checkpoint
  double baseline = 0;       ///< accuracy of the most frequent label
  /// nullopt if the paper has none, or if the dataset cannot be the paper's.
  std::optional<double> published{};
  std::string dataset{};                     ///< path
  nlohmann::ordered_json dataset_options{};  ///< in the dataset's provenance; null: none
  nlohmann::ordered_json config{};           ///< of the run, by section and key
  std::int64_t test_samples = 0, parameters = 0, steps = 0, tokens = 0;
  double seconds = 0;           ///< of training, without validation
  std::int64_t peak_bytes = 0;  ///< of tensors in training
};

/// Returns the names of the tasks.
std::vector<std::string> lra_tasks();
/// Returns the names of mechanisms: softmax, local (softmax in a window of 64 tokens), linformer, windowed, and the
/// feature maps of linear attention.
std::vector<std::string> lra_mechanisms();

/// Loads the configs of all tasks and mechanisms, and checks datasets and existing runs, so that nothing is missing
/// after hours of training. Logs a warning for each dataset that is not the paper's. Throws UserError if a config is
/// missing or does not fit it, if a dataset of files is missing or does not fit its config (check_against_data()), if
/// an existing run has another config, or if `samples` are given and an existing dataset has others or no task is
/// generated.
std::vector<LraRun> plan_lra(const std::vector<std::string>& tasks, const std::vector<std::string>& mechanisms,
                             const LraOptions& options);

/// Accuracies of the most frequent label, by data settings: reading the training split takes minutes.
using LraBaselines = std::map<std::string, double>;

/// Trains one model, unless its run is finished, and evaluates its best checkpoint on the test split. Generates the
/// dataset of a generated task if it does not exist. Throws as train().
LraResult bench_lra(const LraRun& run, const LraOptions& options, LraBaselines& baselines);

}  // namespace furlong
