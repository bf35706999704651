#include "evaluation/bench/bench_lra.h"

#include <algorithm>
#include <array>
#include <memory>

#include "datasets/prepare/prepare_task.h"
#include "datasets/tasks/listops.h"
#include "datasets/tasks/pathfinder.h"
#include "datasets/tokenized_dataset.h"
#include "evaluation/predictions.h"
#include "evaluation/report/run_files.h"
#include "evaluation/run_check.h"
#include "evaluation/unigram_baseline.h"
#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/text_file.h"
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "layers/attention/mechanism.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/objective.h"
#include "trainers/train/train.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t data_seed = 1;

struct LraTask {
  const char* name;
  std::array<std::uint64_t, 3> samples;  // as published
  std::int64_t sequence_length;          // as published
  std::unique_ptr<LabeledTask> (*make)(std::int64_t sequence_length);
};
/// Expressions have a quarter of the longest length or more, as the published ones.
std::unique_ptr<LabeledTask> make_listops(std::int64_t sequence_length) {
  return std::make_unique<ListOps>(
      ListOpsOptions{.min_length = sequence_length / 4, .max_length = sequence_length, .seed = data_seed});
}
template <std::int64_t side>
std::unique_ptr<LabeledTask> make_pathfinder(std::int64_t) {
  return std::make_unique<Pathfinder>(side, data_seed);
}
const std::array lra_task_list{LraTask{"listops", ListOps::published_samples, 2000, make_listops},
                               LraTask{"pathfinder", Pathfinder::published_samples, 1024, make_pathfinder<32>},
                               LraTask{"pathx", Pathfinder::published_samples, 16384, make_pathfinder<128>}};

struct PublishedAccuracy {
  const char *task, *mechanism;
  double accuracy;
};
/// Table 1 of Tay et al. 2020: Transformer, Local Attention, Linformer, Performer, Linear Transformer. On
/// Path-X none of them is better than guessing.
constexpr std::array published_accuracies{PublishedAccuracy{"listops", "softmax", 0.3637},
                                          PublishedAccuracy{"listops", "local", 0.1582},
                                          PublishedAccuracy{"listops", "linformer", 0.3570},
                                          PublishedAccuracy{"listops", "favor_positive", 0.1801},
                                          PublishedAccuracy{"listops", "elu1", 0.1613},
                                          PublishedAccuracy{"pathfinder", "softmax", 0.7140},
                                          PublishedAccuracy{"pathfinder", "local", 0.6663},
                                          PublishedAccuracy{"pathfinder", "linformer", 0.7634},
                                          PublishedAccuracy{"pathfinder", "favor_positive", 0.7705},
                                          PublishedAccuracy{"pathfinder", "elu1", 0.7530}};

/// Returns the settings that select a mechanism.
std::vector<std::string> mechanism_settings(const std::string& name) {
  constexpr const char* key = "model.attention.mechanism=";
  if (name == "local") return {std::string(key) + "softmax", "model.attention.window=64"};
  if (name == "windowed")
    return {std::string(key) + name, "model.attention.softmax_window=64", "model.attention.feature_map=favor_positive"};
  if (name == "softmax" || name == "linformer") return {std::string(key) + name};
  return {std::string(key) + "linear", "model.attention.feature_map=" + name};
}

LoadedSettings settings_of(const std::string& task, const std::string& mechanism, const LraOptions& options) {
  const fs::path config = options.configs / fmt::format("{}_{}.yaml", task, options.size);
  if (!fs::exists(config))
    throw UserError("{}: cannot be opened; give the folder of configs of this task and size with --configs",
                    config.string());
  std::vector<std::string> overrides = mechanism_settings(mechanism);
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  LoadedSettings loaded = load_settings(config, overrides);
  loaded.settings.run_directory = options.output / fmt::format("{}_{}_{}", task, options.size, mechanism);
  return loaded;
}

/// Returns the options in a dataset's provenance, null if there are none.
Json options_of_dataset(const std::string& path) {
  const Json provenance = Json::parse(TokenizedDataset::open(path).provenance(), nullptr, false);
  return provenance.is_object() ? provenance.value("options", Json()) : Json();
}

/// Generates the dataset if it does not exist, otherwise compares it with the options.
void prepare_dataset(const std::string& name, const DataSettings& data, const LraOptions& options, LraResult& result) {
  const fs::path& dataset = data.dataset;
  const auto& info =
      *std::find_if(lra_task_list.begin(), lra_task_list.end(), [&](const LraTask& one) { return name == one.name; });
  const auto task = info.make(data.sequence_length);
  if (data.sequence_length != info.sequence_length) result.published.reset();
  const auto samples = options.samples.value_or(info.samples);
  if (!fs::exists(dataset)) {
    log_info("generating {}", dataset.string());
    if (dataset.has_parent_path()) fs::create_directories(dataset.parent_path());
    prepare_task(*task, {.output = dataset.string(), .samples = samples, .progress = log_progress});
  }
  Json expected = provenance_options(*task, samples);
  Json found = result.dataset_options = options_of_dataset(dataset.string());
  const Json found_samples = found.is_object() ? found.value("samples", Json()) : Json();
  if (options.samples && found_samples != expected["samples"])
    throw UserError("--samples: {} exists and has {}, but this command has {}; remove the option or the dataset",
                    dataset.string(), found_samples.dump(), expected["samples"].dump());
  for (Json* json : {&found, &expected}) {  // other samples of the same distribution are comparable
    if (!json->is_object()) continue;
    json->erase("samples");
    json->erase("seed");
  }
  if (found == expected) return;
  result.published.reset();
  log_warn("{}: was prepared with {}; expected {}. The accuracies are not comparable with published ones",
           dataset.string(), found.dump(), expected.dump());
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
  const auto source = evaluation_source(settings, model.vocabulary, *data, Split::test, length, batch_size);
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
  for (const LraTask& task : lra_task_list) names.emplace_back(task.name);
  return names;
}

std::vector<std::string> lra_mechanisms() {
  std::vector<std::string> names{"softmax", "local", "linformer", "windowed"};
  for (const ops::FeatureMapInfo& map : ops::feature_maps()) names.emplace_back(map.name);
  return names;
}

std::optional<double> published_accuracy(const std::string& task, const std::string& mechanism) {
  for (const PublishedAccuracy& one : published_accuracies)
    if (task == one.task && mechanism == one.mechanism) return one.accuracy;
  return std::nullopt;
}

LraResult bench_lra(const std::string& task, const std::string& mechanism, const LraOptions& options,
                    LraBaselines& baselines) {
  const LoadedSettings loaded = settings_of(task, mechanism, options);
  refuse_other_run(loaded.settings);
  LraResult result{.task = task, .mechanism = mechanism, .run_directory = loaded.settings.run_directory};
  result.published = published_accuracy(task, mechanism);
  result.config = to_json(loaded.settings);
  result.dataset = loaded.settings.data.dataset.string();
  if (!result.dataset.empty()) prepare_dataset(task, loaded.settings.data, options, result);
  const Device device = device_from_name(loaded.settings.device);
  arena(device).reset_peak();
  const TrainResult trained = train(loaded, {});
  result.interrupted = trained.interrupted;
  if (trained.interrupted) return result;
  result.steps = trained.step;
  measure_accuracy(device, options, baselines, result);
  const RunFiles files = read_run(result.run_directory);
  result.tokens = static_cast<std::int64_t>(files.tokens());
  result.seconds = files.seconds();
  if (const double bytes = files.last("train", "memory_bytes"); bytes > 0)  // not NaN
    result.peak_bytes = static_cast<std::int64_t>(bytes);
  return result;
}

}  // namespace furlong
