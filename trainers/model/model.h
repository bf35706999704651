#pragma once
// A model as the trainers hold it: parameters, the network over them, and what its tokens mean.
#include <functional>
#include <memory>

#include "datasets/vocabulary.h"
#include "framework/io/checkpoint_file.h"
#include "layers/models/decoder.h"
#include "layers/models/encoder.h"
#include "trainers/settings/settings.h"

namespace furlong {

struct Model {
  Settings settings;
  Vocabulary vocabulary;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<layers::Decoder> decoder;  ///< model.architecture: decoder
  std::unique_ptr<layers::Encoder> encoder;  ///< model.architecture: encoder
  Stream stream;                             ///< what its ops are launched on, with the precision of its products

  /// Random directions that are due before optimizer step `step`, and constants from the steps before; step 0 gives the
  /// model its first. `only`: as Decoder::redraw.
  void redraw(std::int64_t step, std::optional<std::size_t> only = std::nullopt);
};

/// What the tokens of a model trained on data with this vocabulary mean: encoders have <mask> and <class> besides, and
/// labels go along where they are learned. The vocabulary of such a model stays as it is.
Vocabulary model_vocabulary(const Settings& settings, const Vocabulary& data);
/// The size that the settings ask for, or the vocabulary's; UserError when the settings' is too small for it.
std::int64_t vocabulary_size(const Settings& settings, const Vocabulary& vocabulary);
/// Whether a model has logits of tokens: not where its head is one of labels, or hidden states are all
/// (model.prediction_head: none).
bool has_output_layer(const Settings& settings);
/// Throws UserError, beginning with `what` (the file or key that asks), for models whose hidden states are all that
/// they give (model.prediction_head: none): they have no logits of tokens, and no loss or accuracy over them.
void require_output_layer(const Settings& settings, const std::string& what);

/// Which parameters are not to be trained (ParameterStore::freeze); empty: none.
using Frozen = std::function<bool(const Parameter&)>;

/// A new model with initial values from settings.seed, for data with this vocabulary. `compute` overrides the settings'
/// dtype (float64 in tests). Its stream takes TF32 as the settings say. With model.lora_rank the weights beside the
/// adapters are frozen, and with `frozen` those that it names.
Model make_model(const Settings& settings, const Vocabulary& data, const Device& device,
                 std::optional<DType> compute = std::nullopt, const Frozen& frozen = {});

/// Which of a checkpoint's weights to take.
enum class Weights { averaged_if_present, raw };

/// Reads the parameters (and buffers) of a checkpoint into the model; with `averaged_if_present`, the exponential
/// moving average where the checkpoint has one. Throws UserError naming the tensor on any that is missing, misshapen,
/// unknown to the model, or not finite.
void load_parameters(const CheckpointReader& checkpoint, Model& model, Weights weights);

/// A model from a checkpoint alone: its own config and vocabulary, and float32 products without TF32. One that is only
/// to be used saves the memory of gradients with a `frozen` that names all.
Model load_model(const CheckpointReader& checkpoint, const Device& device, Weights weights, const Frozen& frozen = {});

/// The checkpoint that a path means to those who use a model: the file itself, or of a run directory the best one, or
/// the newest whole one where there is no best; of one of furlong finetune that of its last stage (last_stage_of),
/// which is told. Throws UserError.
std::filesystem::path checkpoint_of(const std::filesystem::path& run_or_checkpoint);
/// The same for those who train on: of a run directory the newest whole one, whatever its validation loss.
std::filesystem::path newest_checkpoint_of(const std::filesystem::path& run_or_checkpoint);

}  // namespace furlong
