#pragma once
// A model as the trainers use it: parameters, the network over them, and the vocabulary.
#include <functional>
#include <memory>

#include "datasets/vocabulary.h"
#include "framework/io/checkpoint_file.h"
#include "layers/models/decoder.h"
#include "layers/models/encoder.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Owns the parameters, the network over them and the vocabulary. Movable.
struct Model {
  Settings settings;
  Vocabulary vocabulary;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<layers::Decoder> decoder;  ///< model.architecture: decoder
  std::unique_ptr<layers::Encoder> encoder;  ///< model.architecture: encoder
  /// The stream on which the model's ops run: its device's main stream, with the precision of matrix products.
  Stream stream;
  /// Where load_model() read the weights: the file, the step of its training, and whether they are the exponential
  /// moving average. `checkpoint` is empty for a new or an imported model.
  std::string checkpoint = {};
  std::int64_t step = 0;
  bool has_ema_weights = false;

  /// Redraws the random projections and constants that are due before optimizer step `step`; step 0 draws the first
  /// ones. `only`: see Decoder::redraw.
  void redraw(std::int64_t step, std::optional<std::size_t> only = std::nullopt);
};

/// Returns the vocabulary of a model trained on data with vocabulary `data`. Encoders add <mask> and <class>; labels
/// are included if the objective learns them. A model keeps this vocabulary for life.
Vocabulary model_vocabulary(const Settings& settings, const Vocabulary& data);
/// Returns model.vocabulary_size if it is set, otherwise the size of the vocabulary. Throws UserError if the configured
/// size is too small for the vocabulary.
std::int64_t vocabulary_size(const Settings& settings, const Vocabulary& vocabulary);
/// Returns whether the model has token logits. It has none if its head predicts labels or if it only returns hidden
/// states (model.prediction_head: none).
bool has_output_layer(const Settings& settings);
/// Throws UserError for a model that only returns hidden states (model.prediction_head: none): it has no logits, and so
/// no loss or accuracy. The message starts with `what`, the file or key that asks for logits.
void require_output_layer(const Settings& settings, const std::string& what);

/// Selects the parameters to freeze (ParameterStore::freeze); an empty function freezes none.
using Frozen = std::function<bool(const Parameter&)>;

/// Makes a new model for data with this vocabulary, with initial values from settings.seed. `compute` overrides the
/// settings' dtype (float64 in tests). TF32 products follow the settings. With model.lora_rank all weights except the
/// adapters are frozen; `frozen` freezes further parameters.
Model make_model(const Settings& settings, const Vocabulary& data, const Device& device,
                 std::optional<DType> compute = std::nullopt, const Frozen& frozen = {});

/// Makes a model as make_model() does, whose weights are zero: the caller sets all of them, for example with
/// initialize_from(). Drawing initial values takes some 40 ns each.
Model make_empty_model(const Settings& settings, const Vocabulary& data, const Device& device,
                       std::optional<DType> compute = std::nullopt, const Frozen& frozen = {});

/// Which weights of a checkpoint to load: the EMA if the checkpoint has one, or the raw weights.
enum class Weights { ema_if_present, raw };

/// Throws UserError that names the tensor if values read from the checkpoint are not finite.
void require_finite(const CheckpointReader& checkpoint, const std::string& name, const Tensor& tensor);

/// Loads parameters and buffers from a checkpoint into the model. With `ema_if_present` it takes the EMA if the
/// checkpoint has one. Throws UserError, naming the tensor, if one is missing, has the wrong shape, is unknown to the
/// model, or is not finite.
void load_parameters(const CheckpointReader& checkpoint, Model& model, Weights weights);

/// Makes a model from a checkpoint, with the checkpoint's own config and vocabulary, and with float32 products without
/// TF32. For inference, pass a `frozen` that selects all parameters: it saves the memory of the gradients.
Model load_model(const CheckpointReader& checkpoint, const Device& device, Weights weights, const Frozen& frozen = {});

/// Returns a frozen copy on `device` that computes in `compute`, for inference, with float32 products without TF32.
/// Throws ContractError if `model` is not on the CPU.
Model copy_of(const Model& model, const Device& device, DType compute);

/// Returns the checkpoint that a path selects for inference. A file selects itself. A run directory selects its best
/// checkpoint, or the newest complete one if there is no best. A finetune run directory selects its last stage
/// (last_stage_of), which is logged. Throws UserError if there is no checkpoint.
std::filesystem::path checkpoint_of(const std::filesystem::path& run_or_checkpoint);
/// Returns the files of a run directory or checkpoint that commands read: the selected checkpoint, and the config and
/// metrics of its run. Throws as checkpoint_of().
std::vector<std::string> files_of_run(const std::filesystem::path& run_or_checkpoint);
/// Like checkpoint_of, for further training: a run directory selects its newest complete checkpoint, whatever its
/// validation loss.
std::filesystem::path newest_checkpoint_of(const std::filesystem::path& run_or_checkpoint);

}  // namespace furlong
