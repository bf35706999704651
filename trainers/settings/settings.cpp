#include "trainers/settings/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "framework/config/reader.h"
#include "framework/config/writer.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "layers/attention/linear/linear_mechanism.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "trainers/settings/keys.h"

namespace furlong {
namespace {

// Rules for whole files, which the tables of keys do not contain.
constexpr const char* introduction = R"(# Configuration

One YAML file configures a run. `furlong config check FILE` checks a file. `furlong config show
FILE` prints it with all defaults and derived values, except keys of the model that come from
`finetune.source`; `--comments` adds the meaning of each key. `furlong config reference` writes this
page, and `furlong config schema` a JSON Schema for editors.

- **Order.** Defaults, then files named by `include:`, then the file itself, then `--set a.b=c` on
  the command line. Later values win, key by key; a list is replaced as a whole. `include:` is a
  top-level key. Its value is a path, or a list of paths in increasing priority, relative to the
  including file.
- **Errors.** Unknown or repeated keys, wrong types, values out of range, impossible combinations
  and keys without an effect are errors that name file, line and column. `false`, and a 0 that means
  off or the default, are accepted without an effect. If `--set` makes a key of a file ineffective,
  the key is ignored with a warning.
- **Null** unsets a value and restores the default: `--set a.b=null` that of the file, `key: null`
  that of an included file.
- **Paths** are relative to the current directory. Only in paths, `${NAME}` and `${NAME:-default}`
  are environment variables (an empty variable counts as unset), a leading `~/` is the home
  directory, and `$$` is a dollar sign.
- **Numbers** are decimal: `3`, `0.1`, `1e-3`; an integer may be written `1e6`. Booleans are `true`
  and `false`.
- **Derived values.** 0 often means "derive the value from other keys". The run's own `config.yaml`
  contains the derived values. To change a key that others derive from, edit the original file.
- **Initial weights.** With `model.weights`, the keys under `model` must have the values of the
  checkpoint's model (`furlong finetune` takes them from its source). May differ: `dropout`,
  `dtype`, `initializer_range` and the output layer; a longer `max_sequence_length`; attention and
  LoRA, as long as each tensor of the checkpoint has a place. Tensors that the checkpoint lacks are
  initialized as in a new model. So are an output layer for something else (labels instead of
  tokens, or labels of other names or order), and random projections of another
  `model.attention.random_projection`. A longer table of learned positions repeats the checkpoint's.
  A resumed run continues from its own checkpoint instead.
- **LoRA.** With `model.lora_rank`, these weights are trained: the adapters, the classifier of
  labels, and what attention has besides its linear layers (feature maps, gates, norms of queries
  and keys, gains, convolutions, projections along the sequence). All other weights are frozen.
- **Mixtures.** `data.sources: [{dataset: a.h5, weight: 3}, {dataset: b.h5, weight: 1}]` draws the
  samples (rows) of training from several datasets, here three quarters from `a.h5`. Of every 2^20
  samples each dataset gives its share, rounded to whole samples; shorter runs vary. Which dataset
  gives a sample is a function of the seed and the sample's number, at any world size and after a
  resume. A dataset gives its samples in the order of `data.sampler`. All datasets need the same
  tokenizer. Validation and `evaluate` use the first one; `furlong evaluate --data` measures any
  other.
- **Stateful training.** With `data.stateful`, a token's context is its document up to the token.
  Documents are cut into segments of `data.sequence_length` tokens. The segments of a split, in
  order, are divided into parts of nearly equal length, one for each row of a batch (in training,
  for each row of all accumulated batches). The state is empty at the start of each document and of
  each part. In training, a part can start inside a document. In validation and `evaluate`, parts
  start at document starts. The exceptions are a split with fewer documents than rows, and a split
  whose longest part would then be more than twice as long as parts of equal length. There parts can
  start inside a document, and the loss depends on the batch size; `data.batch_size: 1` evaluates
  whole documents.

Terms of this page and of the help: [glossary.md](glossary.md).

)";

}  // namespace

LabelKind ObjectiveSettings::label_kind() const {
  switch (name) {
    case Objective::regression:
      return LabelKind::numbers;
    case Objective::multi_label_classification:
      return LabelKind::sets;
    case Objective::token_classification:
      return LabelKind::tokens;
    default:
      return LabelKind::classes;
  }
}

std::vector<DataSource> DataSettings::mixture() const {
  std::vector<DataSource> found;
  if (!dataset.empty()) found.push_back({dataset, 1});
  double sum = static_cast<double>(found.size());
  for (const config::Item& item : sources) {
    const std::string& text = item.at("weight");
    const double weight = config::number_in(text).value_or(-1);
    if (weight < 0) throw UserError("data.sources: found the weight {}; expected a finite number of at least 0", text);
    if (item.at("dataset").empty()) throw UserError("data.sources: a dataset is empty; expected a path");
    found.push_back({item.at("dataset"), weight});
    sum += weight;
  }
  if (!found.empty() && !(sum > 0)) throw UserError("data.sources: no weight is above 0; expected at least one");
  if (!std::isfinite(sum)) throw UserError("data.sources: the sum of the weights is not finite; reduce them");
  return found;
}

const StageSettings& FinetuneSettings::stage(const std::string& name) const {
  if (name == "attention_transfer") return attention_transfer;
  if (name == "distillation") return distillation;
  require(name == "task", "unknown stage '{}'", name);
  return task;
}

namespace {

// Shortens warm-up and decay to fit max_steps, so that a long run's config also works for a short run. Throws UserError
// if the command line sets the value that does not fit. For a stage of finetune, a key's origin is that of the stage's
// own key, if it sets one.
void fit_schedule(LoadedSettings& read) {
  ScheduleSettings& schedule = read.settings.schedule;
  const std::int64_t max_steps = read.settings.trainer.max_steps;
  const auto shorten = [&](const char* key, std::int64_t& steps, std::int64_t fitting) {
    const config::Table table = settings_table(read.settings);
    const auto cite = [&](const char* name) { return config::cite(table, read.origins, name, {}); };
    const auto origin = read.origins.find(key);
    if (origin != read.origins.end() && origin->second.line == 0 && !origin->second.source.empty())
      throw UserError("{}: {} does not fit {}; lower it, or train longer", origin->second.source, cite(key),
                      cite("trainer.max_steps"));
    if (origin != read.origins.end())  // a default adapts silently
      read.warnings.push_back(
          fmt::format("{} does not fit {}; using {}", cite(key), cite("trainer.max_steps"), fitting));
    steps = fitting;
  };
  const bool decays_last = schedule.name == "warmup_stable_decay";
  // Somebody may want a run that only warms up, but not by default.
  const bool decays = schedule.name == "linear" || schedule.name == "cosine";
  const bool adapts_silently = !read.origins.contains("schedule.warmup_steps");
  const std::int64_t least_decay = decays_last || schedule.decay_steps > 0 || (decays && adapts_silently) ? 1 : 0;
  if (schedule.warmup_steps + least_decay > max_steps && schedule.warmup_steps > 0)
    shorten("schedule.warmup_steps", schedule.warmup_steps,
            std::max<std::int64_t>(max_steps / 10, schedule.name == "inverse_square_root" ? 1 : 0));
  if (schedule.decay_steps > 0 && schedule.warmup_steps + schedule.decay_steps > max_steps)
    shorten("schedule.decay_steps", schedule.decay_steps, max_steps - schedule.warmup_steps);
  const std::int64_t last = schedule.decay_steps > 0 ? schedule.decay_steps : std::max<std::int64_t>(1, max_steps / 10);
  if (decays_last && schedule.warmup_steps + last > max_steps)
    shorten("schedule.warmup_steps", schedule.warmup_steps, max_steps - last);
}

}  // namespace

config::Table settings_table(Settings& settings, bool requires_dataset) {
  config::Table table;
  add_run_keys(table, settings);
  add_model_keys(table, settings.model);
  add_attention_keys(table, settings.model.attention);
  add_data_keys(table, settings.data, requires_dataset);
  add_objective_keys(table, settings.objective);
  add_teacher_keys(table, settings.teacher);
  add_optimizer_keys(table, settings.optimizer, settings.schedule);
  add_trainer_keys(table, settings.trainer);
  add_output_keys(table, settings.checkpoint, settings.log, settings.parallel);
  add_finetune_keys(table, settings.finetune);
  add_renamed_keys(table);
  return table;
}

LoadedSettings read_settings_file(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                                  const Settings& defaults) {
  Settings settings = defaults;
  auto reading = config::read_settings(settings_table(settings), file, overrides);
  if (settings.run_directory.empty()) settings.run_directory = std::filesystem::path("runs") / file.stem();
  LoadedSettings read{std::move(settings), std::move(reading.origins), std::move(reading.files)};
  for (const std::string& change : reading.renamed) read.warnings.push_back(change + "; use the present name");
  return read;
}

LoadedSettings finish_settings(LoadedSettings read) {
  read.as_set = read.settings;
  fit_schedule(read);
  for (std::string& warning : check(read.settings, read.origins)) read.warnings.push_back(std::move(warning));
  read.settings = resolve(std::move(read.settings));
  return read;
}

void log_warnings(const LoadedSettings& loaded) {
  for (const std::string& warning : loaded.warnings) log_warn("{}", warning);
}

LoadedSettings load_settings(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return finish_settings(read_settings_file(file, overrides, Settings()));
}

LoadedSettings from_yaml_text(const std::string& text, const std::string& name,
                              const std::vector<std::string>& overrides) {
  Settings settings;
  auto reading = config::read_settings_text(settings_table(settings), text, name, overrides);
  return finish_settings({std::move(settings), std::move(reading.origins), std::move(reading.files)});
}

LoadedSettings from_checkpoint_text(const std::string& text, const std::string& name,
                                    const std::vector<std::string>& overrides) {
  Settings settings;
  auto reading = config::read_settings_text(settings_table(settings, false), text, name, overrides,
                                            config::PathExpansion::off);
  return finish_settings({std::move(settings), std::move(reading.origins), std::move(reading.files)});
}

Settings resolve(Settings settings) {
  auto& model = settings.model;
  auto& attention = model.attention;
  if (attention.n_kv_heads == 0) attention.n_kv_heads = attention.n_heads;
  if (attention.d_head == 0) attention.d_head = model.d_model / attention.n_heads;
  if (model.d_feedforward == 0) model.d_feedforward = 4 * model.d_model;
  if (model.max_sequence_length == 0) model.max_sequence_length = settings.data.sequence_length;
  auto& scaling = model.rotary_scaling;
  if (model.position == layers::Position::rotary && scaling.uses_original_length() && scaling.original_length == 0)
    scaling.original_length = model.max_sequence_length;
  if (attention.map_options.kernel_epsilon == 0)
    attention.map_options.kernel_epsilon = ops::FeatureMapOptions{}.kernel_epsilon;
  // More could not be read back as n_features.
  attention.map_options.max_features = std::min<std::int64_t>(attention.map_options.max_features, 65536);
  if (attention.n_features == 0 && layers::uses(attention, &layers::MechanismInfo::has_features))
    attention.n_features = layers::feature_sizes(layers::attention_config(model)).features;
  if (layers::uses(attention, &layers::MechanismInfo::projects_sequence))
    attention.projected_length = layers::resolved_projected_length(layers::attention_config(model));
  auto& schedule = settings.schedule;
  const std::int64_t max_steps = settings.trainer.max_steps;
  if (schedule.decay_steps == 0 && (schedule.name == "linear" || schedule.name == "cosine"))
    schedule.decay_steps = max_steps - schedule.warmup_steps;
  if (schedule.decay_steps == 0 && schedule.name == "warmup_stable_decay")
    schedule.decay_steps = std::max<std::int64_t>(1, max_steps / 10);
  return settings;
}

std::string changed_to_yaml(const LoadedSettings& loaded, bool comments) {
  Settings copy = loaded.as_set;
  return config::to_yaml(settings_table(copy), comments, &loaded.origins);
}

namespace {

constexpr std::string_view title = "# Complete settings of a Furlong run";

}  // namespace

std::string to_yaml(const Settings& settings, bool comments) {
  Settings copy = settings;
  return fmt::format("{}, including derived values. Keys without an effect in this combination are commented out.\n",
                     title) +
         config::to_yaml(settings_table(copy), comments);
}

bool is_config_of_run(std::string_view text) { return text.starts_with(title); }

nlohmann::ordered_json to_json(const Settings& settings) {
  Settings copy = settings;
  return config::to_json(settings_table(copy));
}

namespace {

/// Returns whether furlong finetune takes a key that is not set from finetune.source, or from finetune.student if there
/// is one. The attention, which replaces the source's, and keys of training alone have their usual defaults.
bool comes_from_source(const std::string& key, bool has_student) {
  if (!key.starts_with("model.")) return key == "objective.name";
  if (key == "model.dropout" || key == "model.dtype") return false;
  const bool is_new = (key.starts_with("model.attention.") && key != "model.attention.window") ||
                      key == "model.lora_rank" || key == "model.lora_alpha";
  return has_student || !is_new;
}

/// Settings of furlong finetune without the keys that come from its source.
struct ShownSettings {
  Settings settings;
  config::Origins keys;

  explicit ShownSettings(const LoadedSettings& loaded) : settings(loaded.settings) {
    settings.model = loaded.as_set.model;  // derived values would be those of a default model
    const config::Table table = settings_table(settings);
    for (const config::Key& key : table.keys())
      if (loaded.origins.contains(key.path()) || !comes_from_source(key.path(), !settings.finetune.student.empty()))
        keys[key.path()];
  }
};

}  // namespace

std::string shown_as_yaml(const LoadedSettings& loaded, bool comments) {
  const FinetuneSettings& finetune = loaded.settings.finetune;
  if (finetune.source.empty()) return to_yaml(loaded.settings, comments);
  ShownSettings shown(loaded);
  return fmt::format(
             "# Settings of furlong finetune. Missing keys of model, and a missing "
             "objective.name, come from finetune.source{}.\n",
             finetune.student.empty() ? "" : " and finetune.student") +
         config::to_yaml(settings_table(shown.settings), comments, &shown.keys);
}

nlohmann::ordered_json shown_as_json(const LoadedSettings& loaded) {
  if (loaded.settings.finetune.source.empty()) return to_json(loaded.settings);
  ShownSettings shown(loaded);
  return config::to_json(settings_table(shown.settings), &shown.keys);
}

nlohmann::ordered_json json_schema() {
  Settings defaults;
  return config::json_schema(settings_table(defaults), "Furlong configuration");
}

std::string reference_markdown() {
  Settings defaults;
  return introduction + config::reference_markdown(settings_table(defaults));
}

void reset_unused_keys(const config::Table& table, const config::Origins& given) {
  Settings unset;
  const config::Table defaults = settings_table(unset);
  for (const config::Key& key : table.keys())
    if (!given.contains(key.path()) && table.unmet(key)) key.set(defaults.find(key.path())->get());
}

}  // namespace furlong
