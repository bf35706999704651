#include "evaluation/bench/bench_lra.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "datasets/prepare/prepare_task.h"
#include "datasets/tokenized_dataset.h"
#include "evaluation/bench/lra_tasks.h"
#include "evaluation/predictions.h"
#include "evaluation/report/run_files.h"
#include "evaluation/run_check.h"
#include "evaluation/unigram_baseline.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/text_file.h"
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "layers/attention/mechanism.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/signals.h"
#include "trainers/train/train.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Returns whether the mechanism is named by its feature map.
bool is_named_by_map(const layers::MechanismInfo& info) { return info.has_features && !info.is_hybrid; }

/// Returns the settings that select an attention of lra_mechanisms().
std::vector<std::string> mechanism_settings(const std::string& name) {
  constexpr const char* key = "model.attention.mechanism=";
  if (name == "local") return {std::string(key) + "softmax", "model.attention.window=64"};
  const layers::MechanismInfo* info = layers::find_mechanism(name);
  if (!info) return {std::string(key) + "linear", "model.attention.feature_map=" + name};
  if (!info->is_hybrid) return {std::string(key) + name};
  return {std::string(key) + name, "model.attention.softmax_window=64", "model.attention.feature_map=favor_positive"};
}

/// Returns the sizes of which a task has configs in this folder.
std::vector<std::string> sizes_of(const std::string& task, const fs::path& configs) {
  std::vector<std::string> sizes;
  std::error_code ignored;
  const std::string beginning = task + "_";
  for (const auto& entry : fs::directory_iterator(configs, ignored)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".yaml" && name.starts_with(beginning))
      sizes.push_back(name.substr(beginning.size()));
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

fs::path config_of(const std::string& task, const LraOptions& options) {
  fs::path config = options.configs / fmt::format("{}_{}.yaml", task, options.size);
  if (fs::exists(config)) return config;
  const std::vector<std::string> sizes = sizes_of(task, options.configs);
  if (sizes.empty())
    throw UserError("{}: cannot be opened; give the folder of configs of this task and size with --configs",
                    config.string());
  throw UserError("{}: does not exist; {} has configs of --size {}", config.string(), task, fmt::join(sizes, ", "));
}

LoadedSettings settings_of(const fs::path& config, const std::string& task, const std::string& mechanism,
                           const LraOptions& options) {
  std::vector<std::string> overrides = mechanism_settings(mechanism);
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  LoadedSettings loaded = load_settings(config, overrides);
  loaded.settings.run_directory = options.output / fmt::format("{}_{}_{}", task, options.size, mechanism);
  return loaded;
}

/// Returns the command that makes the dataset of a config: a script for configs of this repository, which say so to
/// scripts/run.sh, too; otherwise that for the official files.
std::string prepare_command(const LraTask& task, const fs::path& config, const fs::path& dataset) {
  constexpr std::uint64_t max_bytes = 1 << 20;
  constexpr std::string_view instruction = "# run.sh: prepare ";
  std::istringstream lines(read_text_file(config, max_bytes));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(instruction)) return "scripts/prepare_data.sh " + line.substr(instruction.size());
  return fmt::format("{} --output {}", task.files.command, dataset.string());
}

std::uint64_t samples_in(const Json& options, Split split) {
  const Json samples = options.is_object() ? options.value("samples", Json()) : Json();
  const Json found = samples.is_object() ? samples.value(std::string(name_of(split)), Json()) : Json();
  return found.is_number_unsigned() ? found.get<std::uint64_t>() : 0;
}

/// Returns how the numbers of samples of a generated dataset differ from the published ones, or nothing. `data` is null
/// if it will be generated.
std::string difference_of_samples(const LraTask& task, const TokenizedDataset* data, const LraOptions& options) {
  for (const Split split : all_splits) {
    const auto index = static_cast<std::size_t>(split);
    const std::uint64_t found =
        data != nullptr ? samples_in(options_of(*data), split) : options.samples.value_or(task.samples)[index];
    if (found != task.samples[index])
      return fmt::format("{} {} samples instead of {}", found, name_of(split), task.samples[index]);
  }
  return "";
}

/// Checks the dataset of a task and fills in `run`. Returns a warning, or nothing.
std::string check_dataset(const LraTask& task, const fs::path& config, const LraOptions& options, LraRun& run) {
  const DataSettings& settings = run.loaded.settings.data;
  const fs::path& dataset = settings.dataset;
  if (dataset.empty()) return "";
  const auto& lengths = task.sequence_lengths;
  const std::int64_t length = settings.sequence_length;  // with or without a class token
  run.is_published =
      std::any_of(lengths.begin(), lengths.end(), [&](std::int64_t one) { return length == one || length == one + 1; });
  constexpr std::string_view effect = "its accuracies are not comparable with published ones";
  const auto warning_of = [&](const std::string& difference) {
    if (difference.empty()) return std::string();
    run.is_published = false;
    return fmt::format("{}: {}; {}", dataset.string(), difference, effect);
  };
  if (!fs::exists(dataset)) {
    if (task.make != nullptr) return warning_of(difference_of_samples(task, nullptr, options));
    throw UserError("{}: does not exist; prepare it: {}", dataset.string(), prepare_command(task, config, dataset));
  }
  const TokenizedDataset data = TokenizedDataset::open(dataset.string());
  if (task.make != nullptr && options.samples) {
    for (const Split split : all_splits) {
      const std::uint64_t found = samples_in(options_of(data), split),
                          wanted = (*options.samples)[static_cast<std::size_t>(split)];
      if (found != wanted)
        throw UserError("--samples: {} exists and has {} samples of {} instead of {}; remove the option or the dataset",
                        dataset.string(), found, name_of(split), wanted);
    }
  }
  if (task.make != nullptr) {
    const std::string difference = difference_from(*task.make(settings.sequence_length), data);
    return warning_of(difference.empty() ? difference_of_samples(task, &data, options) : difference);
  }
  const std::string difference = difference_from(task.files, data);
  if (difference.empty()) return "";
  run.is_published = false;
  run.stand_in = dataset.stem().string();
  return fmt::format("{}: a stand-in for {} ({}); {}", dataset.string(), task.files.name, difference, effect);
}

void generate(const LraTask& task, const DataSettings& data, const LraOptions& options) {
  log_info("generating {}", data.dataset.string());
  if (data.dataset.has_parent_path()) fs::create_directories(data.dataset.parent_path());
  prepare_task(
      *task.make(data.sequence_length),
      {.output = data.dataset.string(), .samples = options.samples.value_or(task.samples), .progress = log_progress});
}

/// Returns the accuracy of the most frequent label. The mechanism does not change it.
double baseline_accuracy(const Model& model, const Dataset& data, std::int64_t batches, LraBaselines& baselines) {
  const Settings& settings = model.settings;
  const std::int64_t batch_size = settings.data.batch_size, length = settings.data.sequence_length;
  const Json all = to_json(settings);
  const auto [entry, is_new] = baselines.try_emplace(Json{all["data"], all["objective"], batches}.dump());
  if (is_new)
    entry->second = chance(settings, model.vocabulary, data, Split::test, length, batch_size, batches).accuracy;
  return entry->second;
}

/// Measures the accuracy on the test split.
void measure_accuracy(const Device& device, const LraOptions& options, LraBaselines& baselines, LraResult& result) {
  Model model =
      load_model(CheckpointReader::open(checkpoint_of(result.run_directory)), device, Weights::ema_if_present);
  const Settings& settings = model.settings;
  const std::int64_t batch_size = settings.data.batch_size, length = settings.data.sequence_length,
                     batches = (options.test_samples + batch_size - 1) / batch_size;
  const auto data = open_data(settings.data);
  const auto source = evaluation_source(settings, model.vocabulary, *data, Split::test, length, batch_size, batches);
  const LabelPredictions predicted = predict_labels(model, *source, batch_size, batches);
  result.accuracy = class_metrics(predicted.classes, options.bootstrap).front();
  require(result.accuracy.name == "accuracy", "the first metric is {}", result.accuracy.name);
  result.baseline = baseline_accuracy(model, *data, batches, baselines);
  result.test_samples = predicted.found.targets;
  result.parameters = model.store->trained_parameter_count();
}

}  // namespace

std::vector<std::string> lra_tasks() {
  std::vector<std::string> names;
  for (const LraTask& task : all_lra_tasks()) names.emplace_back(task.name);
  return names;
}

std::vector<std::string> lra_mechanisms() {
  std::vector<std::string> names = layers::mechanisms_where([](const auto& info) { return !is_named_by_map(info); });
  names.emplace_back("local");  // softmax with a window
  for (const ops::FeatureMapInfo& map : ops::feature_maps()) names.emplace_back(map.name);
  return names;
}

std::vector<LraRun> plan_lra(const std::vector<std::string>& tasks, const std::vector<std::string>& mechanisms,
                             const LraOptions& options) {
  const auto is_generated = [](const std::string& task) { return lra_task(task).make != nullptr; };
  if (options.samples && std::none_of(tasks.begin(), tasks.end(), is_generated))
    throw UserError("--samples has no effect: {} is not generated; remove it", fmt::join(tasks, ", "));
  std::vector<LraRun> runs;
  std::vector<std::string> warnings;
  for (const std::string& task : tasks) {
    const fs::path config = config_of(task, options);
    for (const std::string& mechanism : mechanisms) {
      LraRun run{.task = task, .mechanism = mechanism, .loaded = settings_of(config, task, mechanism, options)};
      refuse_other_run(run.loaded.settings);
      if (mechanism == mechanisms.front()) {
        warnings.push_back(check_dataset(lra_task(task), config, options, run));
        const DataSettings& data = run.loaded.settings.data;
        if (fs::exists(data.dataset)) check_against_data(run.loaded, *open_data(data));
      } else {  // the same dataset
        run.stand_in = runs.back().stand_in;
        run.is_published = runs.back().is_published;
      }
      runs.push_back(std::move(run));
    }
  }
  for (const std::string& warning : warnings)
    if (!warning.empty()) log_warn("{}", warning);
  return runs;
}

LraResult bench_lra(const LraRun& run, const LraOptions& options, LraBaselines& baselines) {
  const Settings& settings = run.loaded.settings;
  LraResult result{.task = run.task, .mechanism = run.mechanism, .stand_in = run.stand_in};
  result.run_directory = settings.run_directory;
  if (run.is_published) result.published = published_accuracy(run.task, run.mechanism);
  result.config = to_json(settings);
  result.dataset = settings.data.dataset.string();
  if (!result.dataset.empty()) {
    const LraTask& task = lra_task(run.task);
    if (task.make != nullptr && !fs::exists(result.dataset)) generate(task, settings.data, options);
    result.dataset_options = options_of(TokenizedDataset::open(result.dataset));
  }
  const Device device = device_from_name(settings.device);
  const TrainResult trained = [&] {
    const StopRequests stop_requests;  // a signal during the last step stops the benchmark, too
    TrainResult one = train(run.loaded, {});
    result.interrupted = one.interrupted || stop_requests.received();
    return one;
  }();
  if (result.interrupted) return result;
  result.steps = trained.step;
  measure_accuracy(device, options, baselines, result);
  const RunFiles files = read_run(result.run_directory);
  result.tokens = static_cast<std::int64_t>(files.tokens());
  result.seconds = files.seconds();
  if (const double bytes = files.peak_bytes(); bytes > 0)  // not NaN
    result.peak_bytes = static_cast<std::int64_t>(bytes);
  return result;
}

}  // namespace furlong
