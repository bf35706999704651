#pragma once
// The training objective: where batches come from, and the loss of a batch. objective.name selects next_token,
// masked_tokens, or one of the objectives over labels.
#include <memory>

#include "datasets/batch.h"
#include "datasets/dataset.h"
#include "trainers/model/input_queue.h"
#include "trainers/model/model.h"

namespace furlong {

/// Opens the tokenized dataset, mixture or synthetic task in `settings`. Throws UserError if a dataset does not exist,
/// or if datasets do not fit together.
std::unique_ptr<Dataset> open_data(const DataSettings& settings);
/// Returns the path of the first dataset that does not exist, or an empty string.
std::string missing_data(const DataSettings& settings);
/// Returns a vocabulary to use instead of that of the dataset `missing`, for a model of model.vocabulary_size tokens;
/// their meaning does not matter. Throws UserError if that size is not set.
Vocabulary substitute_vocabulary(const Settings& settings, const std::string& missing);

/// Returns an endless source of training samples in the configured order. `vocabulary` is the model's. Throws UserError
/// if the split is too small, or has no labels and the objective needs them.
std::unique_ptr<BatchSource> training_source(const Settings& settings, const Vocabulary& vocabulary,
                                             const Dataset& data);
/// Returns a source for one pass over a split in its stored order. Rows have at most `sequence_length` tokens; the
/// caller asks for `batch_size` rows at a time. Masks and generated samples do not depend on settings.seed: models
/// trained with different seeds are measured on the same targets. If the caller reads a part of the split, its first
/// `max_batches` batches (0: all), labeled documents come in a fixed random order: splits are often sorted by label.
std::unique_ptr<BatchSource> evaluation_source(const Settings& settings, const Vocabulary& vocabulary,
                                               const Dataset& data, Split split, std::int64_t sequence_length,
                                               std::int64_t batch_size, std::int64_t max_batches = 0);
/// Returns the source of a training run's validations, with the run's lengths and batches.
std::unique_ptr<BatchSource> validation_source(const Settings& settings, const Vocabulary& vocabulary,
                                               const Dataset& data);

/// A batch on the device. Tensors that the batch does not have are undefined.
struct DeviceBatch {
  Tensor inputs;            // int32 [rows, n]
  Tensor targets;           // int32 [rows, n]
  Tensor labels;            // int32 [samples]; undefined for token_classification, whose labels are `targets`
  Tensor values;            // int32 [samples, outputs]: see Batch::values
  ops::AttentionMask mask;  // [rows, n]
};
/// Returns the host values of `batch` with their target tensors in `made`. The result refers to both.
std::vector<InputPart> input_parts(const Batch& batch, DeviceBatch& made);
/// Copies a batch to `device`.
DeviceBatch on_device(const Batch& batch, const Device& device);
/// Returns the largest batch that a step can have, with undefined contents: for the shape-only device. `n_labels`:
/// number of labels, for objectives over labels.
DeviceBatch largest_batch(const Settings& settings, std::int64_t n_labels, const Device& device);

/// Returns the labels of a batch of an objective over labels.
layers::LabelTargets label_targets(const Settings& settings, const DeviceBatch& batch);

/// Returns the loss of a batch over its targets or labels. `carried`: see Decoder::loss. Throws UserError for a model
/// without an output layer.
ops::CrossEntropyResult loss_of(Model& model, layers::ForwardContext& context, const DeviceBatch& batch,
                                const ops::CrossEntropyOptions& options = {},
                                layers::GenerationState* carried = nullptr);

}  // namespace furlong
