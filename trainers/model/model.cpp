#include "trainers/model/model.h"

#include <optional>
#include <set>

#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/stored_model.h"

namespace furlong {

namespace {

/// With LoRA, freezes everything except the adapters, the parameters trained with them, and the label head, which a
/// checkpoint of another objective does not have.
bool is_frozen(const Settings& settings, const Parameter& parameter) {
  if (settings.model.adapter.rank == 0 || layers::is_trained_with_adapters(parameter.name())) return false;
  const std::string& name = parameter.name();
  return !settings.objective.learns_labels() || !(name.starts_with("classifier.") || name.starts_with("matching."));
}

}  // namespace

Vocabulary model_vocabulary(const Settings& settings, const Vocabulary& data) {
  const Vocabulary vocabulary = settings.objective.learns_labels() ? data : data.with_labels({});
  return settings.model.architecture == layers::Architecture::encoder ? vocabulary.with_encoder_tokens() : vocabulary;
}

void Model::redraw(std::int64_t step, std::optional<std::size_t> only) {
  const auto seed = static_cast<std::uint64_t>(settings.seed);
  if (decoder) decoder->redraw(seed, step, only);
  if (encoder) encoder->redraw(seed, step, only);
}

std::int64_t vocabulary_size(const Settings& settings, const Vocabulary& vocabulary) {
  const std::int64_t wanted = settings.model.vocabulary_size, needed = model_vocabulary(settings, vocabulary).size();
  if (wanted == 0) return needed;
  if (wanted < needed) {
    throw UserError(
        "model.vocabulary_size: {} is too small for the {} tokens of the data ({}); omit it to use the size of the "
        "data's vocabulary",
        wanted, needed, vocabulary.kind_name());
  }
  return wanted;
}

bool has_output_layer(const Settings& settings) {
  return !settings.objective.learns_labels() && settings.model.prediction_head != layers::PredictionHead::none;
}

void require_output_layer(const Settings& settings, const std::string& what) {
  if (settings.objective.learns_labels() || settings.model.prediction_head != layers::PredictionHead::none) return;
  throw UserError(
      "{}: the model has no output layer over tokens (model.prediction_head: none). Use furlong logits --hidden for "
      "its hidden states, objective.name: classification to train a label head, or furlong convert --set "
      "model.prediction_head=transform --set model.output_bias=true to add an untrained output layer",
      what);
}

namespace {

std::optional<layers::LabelHeadConfig> label_head(const Settings& settings, const Vocabulary& vocabulary) {
  const ObjectiveSettings& objective = settings.objective;
  if (!objective.learns_labels()) return std::nullopt;
  if (vocabulary.labels().empty()) {
    throw UserError(
        "objective.name: {} needs labels, but the dataset {} has none; make one with furlong prepare labeled "
        "--label-type {}",
        name_of(objective.name), settings.data.dataset.string(), name_of(objective.label_kind()));
  }
  return layers::LabelHeadConfig{static_cast<std::int64_t>(vocabulary.labels().size()),
                                 objective.name == Objective::pair_classification, objective.pooling,
                                 objective.label_kind()};
}

void check_elements(double elements, const StoredModel& stored) {
  if (elements > static_cast<double>(stored.elements))
    throw UserError("{}: its settings describe a model of {:.0f} elements, but it stores {}", stored.origin, elements,
                    stored.elements);
}

/// Before the layers are made, whose objects need memory: counts only the matrices of queries and outputs.
void check_least_elements(const layers::ModelConfig& config, const StoredModel& stored) {
  const double width = static_cast<double>(config.attention.n_heads) * static_cast<double>(config.attention.d_head);
  const double blocks = config.shared_layers ? 1 : static_cast<double>(config.n_layers);
  check_elements(2 * blocks * width * static_cast<double>(config.d_model), stored);
}

void check_elements(const ParameterStore& store, const StoredModel& stored) {
  double elements = 0;  // may exceed every integer
  for (const Parameter& parameter : store.parameters()) {
    double product = 1;
    for (const std::int64_t extent : parameter.shape()) product *= static_cast<double>(extent);
    elements += product;
  }
  check_elements(elements, stored);
}

/// `stored` is null unless a file has the model. Without `draws` the weights are zero.
Model make(const Settings& settings, const Vocabulary& data, const Device& device, std::optional<DType> compute,
           const Frozen& frozen, const StoredModel* stored, bool draws) {
  const Vocabulary vocabulary = model_vocabulary(settings, data);
  Model model{settings, vocabulary, std::make_unique<ParameterStore>(compute.value_or(settings.model.dtype), device),
              nullptr,  nullptr,    Stream{device}};
  model.stream.products.tf32 = settings.tf32;
  if (settings.model.token_dropout) {
    require(vocabulary.mask_id().has_value(), "model.token_dropout with a vocabulary without mask token");
    model.settings.model.mask_token = *vocabulary.mask_id();
  }
  layers::ModelConfig config = model.settings.model;
  config.vocabulary_size = vocabulary_size(settings, vocabulary);
  if (stored) check_least_elements(config, *stored);
  if (config.architecture == layers::Architecture::encoder) {
    model.encoder = std::make_unique<layers::Encoder>(*model.store, config, label_head(settings, vocabulary),
                                                      settings.trainer.activation_checkpointing);
  } else {
    model.decoder = std::make_unique<layers::Decoder>(*model.store, config, settings.trainer.activation_checkpointing);
  }
  model.store->freeze(
      [&](const Parameter& parameter) { return is_frozen(settings, parameter) || (frozen && frozen(parameter)); });
  if (stored) check_elements(*model.store, *stored);
  model.store->allocate(draws ? std::optional(static_cast<std::uint64_t>(settings.seed)) : std::nullopt);
  if (!stored) model.redraw(0);  // a file has the projections, too
  return model;
}

}  // namespace

Model make_model(const Settings& settings, const Vocabulary& data, const Device& device, std::optional<DType> compute,
                 const Frozen& frozen) {
  return make(settings, data, device, compute, frozen, nullptr, true);
}

Model make_empty_model(const Settings& settings, const Vocabulary& data, const Device& device,
                       std::optional<DType> compute, const Frozen& frozen) {
  return make(settings, data, device, compute, frozen, nullptr, false);
}

Model make_empty_model(const StoredModel& stored, const Device& device, std::optional<DType> compute,
                       const Frozen& frozen) {
  return make(stored.settings, stored.vocabulary, device, compute, frozen, &stored, false);
}

StoredModel stored_model(const CheckpointReader& checkpoint) {
  const std::string origin = checkpoint.path().string();
  StoredModel stored{from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings,
                     Vocabulary::from_json(checkpoint.text("vocabulary"), origin), 0, origin};
  for (const TensorInfo& tensor : checkpoint.tensors("parameters/")) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    stored.elements += elements;
  }
  return stored;
}

void require_finite(const CheckpointReader& checkpoint, const std::string& name, const Tensor& tensor) {
  if (const std::int64_t bad = ops::count_non_finite(Stream{tensor.device()}, tensor); bad > 0)
    throw UserError("{}: tensor {} has {} values that are NaN or infinite; use an earlier checkpoint",
                    checkpoint.path().string(), foreign::printable(name), bad);
}

void load_parameters(const CheckpointReader& checkpoint, Model& model, Weights weights) {
  ParameterStore& store = *model.store;
  model.has_ema_weights = false;
  std::set<std::string> known;
  for (const Parameter& parameter : store.parameters()) {
    std::string name = "parameters/" + parameter.name();
    known.insert(name);
    const std::string ema = "ema/" + parameter.name();
    if (weights == Weights::ema_if_present && checkpoint.has(ema)) {
      name = ema;
      model.has_ema_weights = true;
    }
    read_tensor(checkpoint, name, parameter.master());
    require_finite(checkpoint, name, parameter.master());
  }
  for (const TensorInfo& info : checkpoint.tensors("parameters/")) {
    if (!known.contains(info.name))
      throw UserError("{}: unexpected tensor {}: the model of its config has no such tensor",
                      checkpoint.path().string(), foreign::printable(info.name));
  }
  store.refresh_compute_values(model.stream);
}

Model load_model(const CheckpointReader& checkpoint, const Device& device, Weights weights, const Frozen& frozen) {
  Model model = make_empty_model(stored_model(checkpoint), device, std::nullopt, frozen);
  model.stream.products = {};
  load_parameters(checkpoint, model, weights);
  model.checkpoint = checkpoint.path().string();
  model.step = checkpoint.has("step") ? checkpoint.integer("step") : 0;
  return model;
}

Model copy_of(const Model& model, const Device& device, DType compute) {
  require(model.store->device().is_cpu(), "copy_of: a model on {}", model.store->device().text());
  const auto all = [](const Parameter&) { return true; };
  Model copy = make_empty_model(model.settings, model.vocabulary, device, compute, all);
  copy.stream.products = {};
  for (const Parameter& parameter : model.store->parameters()) {
    const Tensor target = copy.store->find(parameter.name()).master();
    const Tensor values = Tensor::empty(target.shape(), target.dtype());
    ops::convert(Stream{}, values, parameter.master());
    target.copy_from(values);
  }
  copy.store->refresh_compute_values(copy.stream);
  copy.checkpoint = model.checkpoint;
  copy.step = model.step;
  copy.has_ema_weights = model.has_ema_weights;
  return copy;
}

namespace {

namespace fs = std::filesystem;

/// Returns the checkpoint folder of a path, or nullopt if the path is a file. Throws UserError if it does not exist.
std::optional<fs::path> checkpoint_folder(const fs::path& path) {
  if (!fs::exists(path)) throw_missing(path, "a run directory or a checkpoint");
  if (!fs::is_directory(path)) return std::nullopt;
  if (fs::exists(path / "checkpoints")) return path / "checkpoints";
  const auto stage = last_stage_of(path);
  if (!stage) return path;
  log_info("{}: a run of furlong finetune; using the student of its last stage, {}", path.string(),
           stage->filename().string());
  return *stage / "checkpoints";
}

/// Returns a file of the directory that Hugging Face models have next to config.json; empty if there is none.
fs::path hugging_face_file(const fs::path& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model",
                           "spiece.model", "model.safetensors.index.json", "pytorch_model.bin"})
    if (fs::exists(directory / name)) return name;
  std::error_code unreadable;
  for (fs::directory_iterator entry(directory, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable))
    if (entry->path().extension() == ".safetensors") return entry->path().filename();
  return {};
}

fs::path newest_in(const fs::path& path, const fs::path& folder) {
  if (const auto newest = newest_complete_checkpoint(folder)) return *newest;
  if (fs::exists(path / "config.json"))
    throw UserError(
        "{0}: a Hugging Face directory; expected a run directory or checkpoint; import it: furlong convert "
        "{0} MODEL.h5",
        path.string());
  if (const fs::path file = hugging_face_file(path); !file.empty())
    throw UserError(
        "{}: config.json is missing, which a Hugging Face directory has next to {}; copy it from where the other files "
        "come from",
        path.string(), foreign::printable(file.string()));
  throw UserError("{}: no checkpoint found (looked for best.h5 and step_*.h5 in {})", path.string(), folder.string());
}

}  // namespace

fs::path checkpoint_of(const fs::path& path) {
  const auto folder = checkpoint_folder(path);
  if (!folder) return path;
  return fs::exists(*folder / "best.h5") ? *folder / "best.h5" : newest_in(path, *folder);
}

std::vector<std::string> files_of_run(const fs::path& path) {
  const fs::path checkpoint = checkpoint_of(path), run = fs::absolute(checkpoint).parent_path().parent_path();
  return {checkpoint.string(), (run / "metrics.jsonl").string(), (run / "config.yaml").string(),
          (path / "recovery.json").string()};  // the last one: of furlong finetune
}

fs::path newest_checkpoint_of(const fs::path& path) {
  const auto folder = checkpoint_folder(path);
  return folder ? newest_in(path, *folder) : path;
}

}  // namespace furlong
