#pragma once
// Everything that a YAML file can say about a run, as typed values. The member initialisers are the defaults; the table
// in *_keys.cpp gives each key its unit, range and meaning. To add a key, declare its member here and add one line
// there.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "framework/config/table.h"
#include "framework/ops/dense/pooling.h"
#include "layers/model_config.h"

namespace furlong {

struct DataSettings {
  std::filesystem::path store;
  std::int64_t sequence_length = 1024;
  std::int64_t batch_size = 4;
  std::string sampler = "random";
  std::vector<std::string> ignore_tokens;
  std::string padding = "longest";
  std::string packing = "none";
  bool carry_state = false;
  std::string task = "none";
  std::int64_t task_symbols = 10;
  std::int64_t task_shortest = 0;
  bool operator==(const DataSettings&) const = default;
};

enum class Objective : std::uint8_t { next_token, masked_tokens, classification, matching };
constexpr auto names_of(Objective) { return std::array{"next_token", "masked_tokens", "classification", "matching"}; }

struct ObjectiveSettings {
  Objective name = Objective::next_token;
  double mask_probability = 0.15;
  double mask_token_share = 0.8;
  double random_token_share = 0.1;
  ops::Pooling pooling = ops::Pooling::mean;
  /// Labels of documents, rather than tokens.
  bool learns_labels() const { return name == Objective::classification || name == Objective::matching; }
  bool operator==(const ObjectiveSettings&) const = default;
};

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

struct ScheduleSettings {
  std::string name = "cosine";
  std::int64_t warmup_steps = 100;
  double final_fraction = 0.1;
  std::int64_t decay_steps = 0;
  bool operator==(const ScheduleSettings&) const = default;
};

struct TrainerSettings {
  std::int64_t max_steps = 1000;
  std::int64_t validate_every = 100;
  std::int64_t validation_batches = 20;
  std::int64_t gradient_accumulation = 1;
  layers::Recompute recompute = layers::Recompute::elementwise;
  bool cuda_graph = true;
  std::int64_t early_stopping_patience = 0;
  double skip_outlier_factor = 0;
  std::int64_t sample_tokens = 0;
  std::string sample_prompt;
  bool operator==(const TrainerSettings&) const = default;
};

struct CheckpointSettings {
  std::int64_t every = 200;
  std::int64_t keep_last = 2;
  bool keep_best = true;
  bool background = true;
  bool operator==(const CheckpointSettings&) const = default;
};

struct LogSettings {
  std::int64_t every = 10;
  std::string level = "info";
  std::string progress = "auto";
  bool operator==(const LogSettings&) const = default;
};

struct ParallelSettings {
  std::string engine = "auto";
  double timeout = 15;
  std::int64_t bucket_megabytes = 25;
  std::string gradient_dtype = "float32";
  bool shard_optimizer = false;
  std::int64_t sequence_processes = 1;
  bool operator==(const ParallelSettings&) const = default;
};

/// A second model that the one being trained is to agree with.
struct TeacherSettings {
  std::filesystem::path checkpoint;
  std::string loss = "none";
  std::string layers = "joint";
  std::string input = "teacher";
  double temperature = 1;
  double share = 1;
  std::string positions = "targets";
  bool teaches() const { return loss != "none"; }
  bool transfers() const { return loss == "transfer"; }
  bool operator==(const TeacherSettings&) const = default;
};

/// What one stage of furlong finetune sets in the place of the keys for all stages; 0: nothing.
struct StageSettings {
  std::int64_t max_steps = 0;
  double learning_rate = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t sequence_length = 0;
  std::int64_t batch_size = 0;
  std::int64_t gradient_accumulation = 0;
  bool operator==(const StageSettings&) const = default;
};

struct FinetuneSettings {
  std::filesystem::path source, student;
  std::vector<std::string> stages;
  StageSettings transfer, distillation, task;
  std::int64_t evaluation_batches = 0;
  std::vector<std::string> lengths;
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

/// Settings that were read from a file.
struct LoadedSettings {
  Settings settings;
  config::Origins origins;                   ///< place of each key that was set
  std::vector<std::filesystem::path> files;  ///< files read, the one named by the user first
  std::vector<std::string> warnings{};  ///< old names, ignored keys and adapted values, one line each, for the user
};

/// Logs the warnings.
void log_warnings(const LoadedSettings& loaded);

/// Reads a YAML file, what it includes, and then `overrides` ("a.b=c"), checks everything and resolves derived values.
/// Throws UserError, one line that names file, line, column and key.
LoadedSettings load_settings(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// The same in two steps, for settings that follow from another model's: what the file and `overrides` set on top of
/// `defaults`, each value checked by itself alone and nothing derived; and checked as a whole and resolved.
LoadedSettings read_settings_file(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                                  const Settings& defaults);
LoadedSettings finish_settings(LoadedSettings read);

/// The same from a text, such as the config in a checkpoint, which cannot include files. Errors call the text `name`.
LoadedSettings from_yaml_text(const std::string& text, const std::string& name,
                              const std::vector<std::string>& overrides = {});

/// The same from the config inside a checkpoint, where data.store may be empty or missing: a model that comes from
/// elsewhere has none.
LoadedSettings from_checkpoint_text(const std::string& text, const std::string& name);

/// Checks combinations of keys. Returns a warning for each key of a file that a `--set` made ineffective. Throws
/// UserError for combinations that are impossible, and for other keys that were set but have no effect. `origins` may
/// be empty.
std::vector<std::string> check(const Settings& settings, const config::Origins& origins = {});

/// The settings with derived values in the place of zeros: n_key_value_heads, d_head, d_feedforward,
/// max_sequence_length, n_features (linear attention), projected_length (Linformer), decay_steps. What only the data or
/// the machine knows stays: vocabulary_size, device, threads.
Settings resolve(Settings settings);

/// Complete YAML; from_yaml_text gives equal settings back. With `comments` every key is followed by its meaning and
/// unit.
std::string to_yaml(const Settings& settings, bool comments = false);
nlohmann::ordered_json to_json(const Settings& settings);

/// JSON Schema (draft 7) of Furlong's YAML files.
nlohmann::ordered_json json_schema();

/// The page docs/config.md.
std::string reference_markdown();

/// The table of all keys, bound to `settings`, which must outlive it.
config::Table settings_table(Settings& settings, bool requires_store = true);

}  // namespace furlong
