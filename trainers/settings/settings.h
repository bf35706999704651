#pragma once
// The configuration of a run as typed values. Member initializers are the defaults. The table in *_keys.cpp gives each
// key its unit, range and meaning. To add a key, declare its member here and add one entry there.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "datasets/label_kind.h"
#include "framework/config/table.h"
#include "framework/ops/dense/pooling.h"
#include "layers/model_config.h"

namespace furlong {

/// A dataset of a mixture.
struct DataSource {
  std::filesystem::path dataset;
  double weight = 0;
};

/// The keys under `data`; `furlong config reference` documents them.
struct DataSettings {
  std::filesystem::path dataset;
  std::vector<config::Item> sources;
  std::int64_t sequence_length = 1024;
  std::int64_t batch_size = 4;
  std::string sampler = "random";
  std::vector<std::string> ignore_tokens;
  std::string padding = "longest";
  std::string packing = "none";
  bool reverse_complement = false;
  bool stateful = false;
  std::string task = "none";
  std::int64_t task_symbols = 10;
  std::int64_t task_min_symbols = 0;
  std::int64_t task_pairs = 4;
  /// Returns `sources`, or one source of weight 1 for `dataset`; none if neither is set. Throws UserError for an empty
  /// path, for a weight that is not a finite number of at least 0, and if no weight is above 0.
  std::vector<DataSource> mixture() const;
  /// Whether rows run on from one document to the next, so that a model reads the document tokens between them.
  bool crosses_documents() const {
    return task == "none" && packing == "none" && (sampler == "random" || sampler == "sequential");
  }
  /// Replaces the datasets by one.
  void use(std::filesystem::path path) { dataset = std::move(path), sources.clear(); }
  bool operator==(const DataSettings&) const = default;
};

enum class Objective : std::uint8_t {
  next_token,
  masked_tokens,
  classification,
  pair_classification,
  regression,
  multi_label_classification,
  token_classification
};
constexpr auto names_of(Objective) {
  return std::array{"next_token",          "masked_tokens", "classification",
                    "pair_classification", "regression",    "multi_label_classification",
                    "token_classification"};
}

/// The keys under `objective`; `furlong config reference` documents them.
struct ObjectiveSettings {
  Objective name = Objective::next_token;
  double mask_probability = 0.15;
  double mask_token_fraction = 0.8;
  double random_token_fraction = 0.1;
  ops::Pooling pooling = ops::Pooling::mean;
  /// Whether targets are labels, of documents or of their tokens, rather than tokens.
  bool learns_labels() const { return name != Objective::next_token && name != Objective::masked_tokens; }
  /// Returns what the labels are, for an objective that learns labels.
  LabelKind label_kind() const;
  bool operator==(const ObjectiveSettings&) const = default;
};

/// The keys under `optimizer`; `furlong config reference` documents them.
struct OptimizerSettings {
  std::string name = "adamw";
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double gradient_clip = 1;
  double ema_decay = 0;
  bool stochastic_rounding = false;
  bool operator==(const OptimizerSettings&) const = default;
};

/// The keys under `schedule`; `furlong config reference` documents them.
struct ScheduleSettings {
  std::string name = "cosine";
  std::int64_t warmup_steps = 100;
  double final_fraction = 0.1;
  std::int64_t decay_steps = 0;
  bool operator==(const ScheduleSettings&) const = default;
};

/// The keys under `trainer`; `furlong config reference` documents them.
struct TrainerSettings {
  std::int64_t max_steps = 1000;
  std::int64_t validate_every = 100;
  std::int64_t validation_batches = 20;
  std::int64_t gradient_accumulation = 1;
  layers::ActivationCheckpointing activation_checkpointing = layers::ActivationCheckpointing::elementwise;
  bool cuda_graph = true;
  std::int64_t early_stopping_patience = 0;
  double skip_outlier_factor = 0;
  std::int64_t sample_tokens = 0;
  std::string sample_prompt;
  bool operator==(const TrainerSettings&) const = default;
};

/// The keys under `checkpoint`; `furlong config reference` documents them.
struct CheckpointSettings {
  std::int64_t every = 200;
  std::int64_t keep_last = 2;
  bool keep_best = true;
  bool async = true;
  bool operator==(const CheckpointSettings&) const = default;
};

/// The keys under `log`; `furlong config reference` documents them.
struct LogSettings {
  std::int64_t every = 10;
  std::string level = "info";
  std::string progress = "auto";
  bool operator==(const LogSettings&) const = default;
};

/// The keys under `parallel`; `furlong config reference` documents them.
struct ParallelSettings {
  std::string backend = "auto";
  double timeout = 15;
  std::int64_t bucket_megabytes = 25;
  std::string gradient_dtype = "float32";
  std::int64_t zero_stage = 0;
  std::int64_t context_parallel_size = 1;
  bool operator==(const ParallelSettings&) const = default;
};

/// The teacher of a distillation.
struct TeacherSettings {
  std::filesystem::path checkpoint;
  std::string loss = "none";
  std::string layers = "joint";
  std::string input = "teacher";
  double temperature = 1;
  double distillation_weight = 1;
  std::string positions = "targets";
  bool has_loss() const { return loss != "none"; }
  bool is_attention_transfer() const { return loss == "attention_transfer"; }
  bool operator==(const TeacherSettings&) const = default;
};

/// Values of one stage of furlong finetune. 0 takes the value for all stages.
struct StageSettings {
  std::int64_t max_steps = 0;
  double learning_rate = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t sequence_length = 0;
  std::int64_t batch_size = 0;
  std::int64_t gradient_accumulation = 0;
  bool operator==(const StageSettings&) const = default;
};

/// The keys under `finetune`; `furlong config reference` documents them.
struct FinetuneSettings {
  std::filesystem::path source, student;
  std::vector<std::string> stages;
  StageSettings attention_transfer, distillation, task;
  std::int64_t evaluation_batches = 0;
  std::vector<std::string> benchmark_lengths;
  /// Returns the values of stage "attention_transfer", "distillation" or "task".
  const StageSettings& stage(const std::string& name) const;
  bool operator==(const FinetuneSettings&) const = default;
};

struct Settings {
  std::int64_t seed = 1;
  std::string device = "auto";
  bool tf32 = false;
  std::int64_t threads = 0;
  std::filesystem::path run_directory;
  layers::ModelConfig model;
  DataSettings data;
  ObjectiveSettings objective;
  TeacherSettings teacher;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;
  TrainerSettings trainer;
  CheckpointSettings checkpoint;
  LogSettings log;
  ParallelSettings parallel;
  FinetuneSettings finetune;
  bool operator==(const Settings&) const = default;
};

/// Settings read from a file.
struct LoadedSettings {
  Settings settings;
  config::Origins origins;                   ///< place of each key that is set
  std::vector<std::filesystem::path> files;  ///< files read, the one named by the user first
  std::vector<std::string> warnings{};       ///< for the user, one line each: old names, ignored keys, adapted values
  Settings as_set{};  ///< `settings` before finish_settings() adapts the schedule and derives values
};

/// Logs the warnings.
void log_warnings(const LoadedSettings& loaded);

/// Reads a YAML file with its included files, applies `overrides` ("a.b=c"), checks the settings and resolves derived
/// values. Throws UserError, one line with file, line, column and key, if the settings are invalid.
LoadedSettings load_settings(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// The first step of load_settings(), for settings with other defaults, such as those of another model. Applies the
/// file and `overrides` to `defaults` and checks each value separately. Nothing is derived. Throws as load_settings()
/// does.
LoadedSettings read_settings_file(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                                  const Settings& defaults);

/// The second step of load_settings(): adapts the schedule to max_steps, checks combinations of keys and resolves
/// derived values.
LoadedSettings finish_settings(LoadedSettings read);

/// As load_settings(), from a text without includes. Errors refer to it as `name`.
LoadedSettings from_yaml_text(const std::string& text, const std::string& name,
                              const std::vector<std::string>& overrides = {});

/// As from_yaml_text(), for the config in a checkpoint. data.dataset may be empty or missing, as in imported models.
/// Environment variables in its paths are not expanded: conversions would copy their values into other checkpoints.
LoadedSettings from_checkpoint_text(const std::string& text, const std::string& name,
                                    const std::vector<std::string>& overrides = {});

/// Checks combinations of keys. Returns a warning for each key of a file that a `--set` made ineffective. Throws
/// UserError for impossible combinations, and for other keys that are set but have no effect. `origins` may be empty.
std::vector<std::string> check(const Settings& settings, const config::Origins& origins = {});

/// Checks the section finetune alone, as check() does: its model is not known before finetune.source is read. Throws
/// UserError.
void check_finetune(const LoadedSettings& read);

/// Returns the settings with derived values instead of zeros: n_key_value_heads, d_head, d_feedforward,
/// max_sequence_length, n_features (linear attention), projected_length (Linformer), decay_steps. Values that depend on
/// the data or the machine stay unchanged: vocabulary_size, device, threads.
Settings resolve(Settings settings);

/// Returns complete YAML, from which from_yaml_text() reads equal settings. With `comments`, each key is followed by
/// its meaning and unit.
std::string to_yaml(const Settings& settings, bool comments = false);
/// Returns whether to_yaml() has written a config, whatever was changed in it since.
bool is_config_of_run(std::string_view text);
/// As to_yaml() and to_json() of the settings, for display. With finetune.source, keys of model that come from there,
/// and objective.name, are left out unless a file or an override sets them. The others have the values that were set.
std::string shown_as_yaml(const LoadedSettings& loaded, bool comments = false);
nlohmann::ordered_json shown_as_json(const LoadedSettings& loaded);

/// Returns only the keys that a file or an override sets and that have an effect, with their present names and the
/// values that were set: neither adapted nor derived.
std::string changed_to_yaml(const LoadedSettings& loaded, bool comments = false);

/// Returns the settings as nested objects, without keys that have no effect.
nlohmann::ordered_json to_json(const Settings& settings);

/// Returns a JSON Schema (draft 7) of Furlong's YAML files.
nlohmann::ordered_json json_schema();

/// Returns the page docs/config.md.
std::string reference_markdown();

/// Returns the table of all keys, bound to `settings`, which must outlive it. `requires_dataset`: data.dataset must be
/// set when data.task is none.
config::Table settings_table(Settings& settings, bool requires_dataset = true);
/// Resets keys that have no effect, such as a feature map without linear heads, unless `given` has them.
void reset_unused_keys(const config::Table& table, const config::Origins& given);

}  // namespace furlong
