#pragma once
// Long Range Arena: trains a model for each task and mechanism, and measures its accuracy. `furlong bench lra`.
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/label_metrics.h"

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

/// A trained and measured model.
struct LraResult {
  std::string task, mechanism;
  std::filesystem::path run_directory{};
  bool interrupted = false;  ///< training was stopped by a signal; nothing below is measured
  Metric accuracy{};         ///< on the test split, of the best checkpoint
  double baseline = 0;       ///< accuracy of the most frequent label
  /// nullopt if the paper has none, or if the dataset was not generated with the paper's options.
  std::optional<double> published{};
  std::string dataset{};                     ///< path
  nlohmann::ordered_json dataset_options{};  ///< in the dataset's provenance; null: none
  nlohmann::ordered_json config{};           ///< of the run, by section and key
  std::int64_t test_samples = 0, parameters = 0, steps = 0, tokens = 0;
  double seconds = 0;           ///< of training, without validation
  std::int64_t peak_bytes = 0;  ///< of tensors in training
};

/// Returns the names of the tasks: listops, pathfinder, pathx.
std::vector<std::string> lra_tasks();
/// Returns the names of mechanisms: softmax, local (softmax in a window of 64 tokens), linformer, windowed, and the
/// feature maps of linear attention.
std::vector<std::string> lra_mechanisms();
/// Returns the accuracy in Table 1 of Tay et al. 2020 (arXiv:2011.04006), or nullopt if it has none.
std::optional<double> published_accuracy(const std::string& task, const std::string& mechanism);

/// Accuracies of the most frequent label, by data settings: reading the training split takes minutes.
using LraBaselines = std::map<std::string, double>;

/// Trains one model, unless its run is finished, and evaluates its best checkpoint on the test split. Generates the
/// config's dataset if it does not exist. `task` and `mechanism` are of the lists above. Throws UserError if the config
/// is missing or does not fit, if an existing run has another config or an existing dataset has other samples than
/// `options.samples`, and as train().
LraResult bench_lra(const std::string& task, const std::string& mechanism, const LraOptions& options,
                    LraBaselines& baselines);

}  // namespace furlong
