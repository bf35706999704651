#include "trainers/model.h"

#include <optional>
#include <set>

#include "trainers/checkpoints.h"

namespace furlong {

layers::DecoderConfig decoder_config(const Settings& settings, std::int64_t vocabulary_size) {
  const ModelSettings& model = settings.model;
  layers::DecoderConfig config;
  config.vocabulary_size = vocabulary_size;
  config.n_layers = model.n_layers;
  config.d_model = model.d_model;
  config.d_feedforward = model.d_feedforward;
  config.max_sequence_length = model.max_sequence_length;
  config.attention = {model.attention.mechanism,
                      model.attention.feature_map,
                      model.attention.n_features,
                      model.attention.directions,
                      model.attention.redraw_every,
                      model.attention.chunk_size,
                      model.n_heads,
                      model.n_key_value_heads,
                      model.d_head,
                      true};
  config.activation = model.activation;
  config.norm = model.norm;
  config.norm_epsilon = model.norm_epsilon;
  config.bias = model.bias;
  config.tied_embeddings = model.tied_embeddings;
  config.position = model.position;
  config.rotary_base = model.rotary_base;
  config.dropout = model.dropout;
  config.short_convolution = model.short_convolution;
  config.initializer_range = model.initializer_range;
  config.recompute_blocks = settings.trainer.recompute == "blocks";
  return config;
}

std::int64_t vocabulary_size(const Settings& settings, const Vocabulary& vocabulary) {
  const std::int64_t wanted = settings.model.vocabulary_size, needed = vocabulary.size();
  if (wanted == 0) return needed;
  if (wanted < needed) {
    throw UserError("model.vocabulary_size: {} is too small for the {} tokens of the data ({}); leave it out to take the data's", wanted,
                    needed, vocabulary.kind_name());
  }
  return wanted;
}

Model make_model(const Settings& settings, const Vocabulary& vocabulary, const Device& device, std::optional<DType> compute) {
  Model model{settings, vocabulary, std::make_unique<ParameterStore>(compute.value_or(dtype_from_name(settings.model.dtype)), device),
              nullptr};
  model.decoder = std::make_unique<layers::Decoder>(*model.store, decoder_config(settings, vocabulary_size(settings, vocabulary)));
  model.store->allocate(static_cast<std::uint64_t>(settings.seed));
  model.decoder->redraw(static_cast<std::uint64_t>(settings.seed), 0);
  return model;
}

void load_parameters(const CheckpointReader& checkpoint, Model& model, Weights weights) {
  ParameterStore& store = *model.store;
  std::set<std::string> known;
  for (const Parameter& parameter : store.parameters()) {
    std::string name = "parameters/" + parameter.name();
    known.insert(name);
    const std::string averaged = "averages/" + parameter.name();
    if (weights == Weights::averaged_if_present && checkpoint.has(averaged)) name = averaged;
    const std::vector<std::int64_t> shape(parameter.shape().begin(), parameter.shape().end());
    checkpoint.read(name, name_of(store.master_dtype()), shape, parameter.master().address());
  }
  for (const TensorInfo& info : checkpoint.tensors("parameters/")) {
    if (!known.contains(info.name))
      throw UserError("{}: the model that its config describes has no place for the tensor {}", checkpoint.path().string(), info.name);
  }
  store.refresh_compute_values(Stream{store.device()});
}

Model load_model(const CheckpointReader& checkpoint, const Device& device, Weights weights) {
  const std::string origin = checkpoint.path().string();
  const Settings settings = from_yaml_text(checkpoint.text("config"), origin + " (config)").settings;
  Model model = make_model(settings, Vocabulary::from_json(checkpoint.text("vocabulary"), origin), device);
  load_parameters(checkpoint, model, weights);
  return model;
}

namespace {

namespace fs = std::filesystem;

/// The folder of checkpoints that a path means, or nothing when it is a file. Throws UserError when there is neither.
std::optional<fs::path> checkpoint_folder(const fs::path& path) {
  if (!fs::exists(path)) throw UserError("{}: there is no such run directory or checkpoint", path.string());
  if (!fs::is_directory(path)) return std::nullopt;
  return fs::exists(path / "checkpoints") ? path / "checkpoints" : path;
}

fs::path newest_in(const fs::path& path, const fs::path& folder) {
  if (const auto newest = newest_whole_checkpoint(folder)) return *newest;
  throw UserError("{}: there is no checkpoint here (looked for best.h5 and step_*.h5 in {})", path.string(), folder.string());
}

}  // namespace

fs::path checkpoint_of(const fs::path& path) {
  const auto folder = checkpoint_folder(path);
  if (!folder) return path;
  return fs::exists(*folder / "best.h5") ? *folder / "best.h5" : newest_in(path, *folder);
}

fs::path newest_checkpoint_of(const fs::path& path) {
  const auto folder = checkpoint_folder(path);
  return folder ? newest_in(path, *folder) : path;
}

}  // namespace furlong
