#pragma once
// What a run learns: where its batches come from and what the loss of one is. objective.name chooses: next_token,
// masked_tokens, classification or matching.
#include <memory>

#include "datasets/batch.h"
#include "datasets/dataset.h"
#include "trainers/model/input_queue.h"
#include "trainers/model/model.h"

namespace furlong {

/// What settings.data names: an open token store, or a task. Throws UserError where there is no such store.
std::unique_ptr<Dataset> open_data(const DataSettings& settings);

/// Samples of the training split without end, in the order that the settings ask for. `vocabulary` is the model's.
/// Throws UserError where the split is too small, or has no labels where they are learned.
std::unique_ptr<BatchSource> training_source(const Settings& settings, const Vocabulary& vocabulary,
                                             const Dataset& data);
/// One pass over a split in its own order, with rows of at most `sequence_length` tokens, to be asked for `batch_size`
/// at a time; what is masked depends on the seed alone.
std::unique_ptr<BatchSource> evaluation_source(const Settings& settings, const Vocabulary& vocabulary,
                                               const Dataset& data, Split split, std::int64_t sequence_length,
                                               std::int64_t batch_size);

/// A batch on the device; what the batch does not have is undefined.
struct DeviceBatch {
  Tensor inputs;            // int32 [rows, n]
  Tensor targets;           // int32 [rows, n]
  Tensor labels;            // int32 [samples]
  ops::AttentionMask mask;  // [rows, n]
};
/// The numbers of a batch and where each belongs in `made`. Refers to both.
std::vector<InputPart> input_parts(const Batch& batch, DeviceBatch& made);
DeviceBatch on_device(const Batch& batch, const Device& device);
/// The largest batch that a step can have, contents undefined: for the shape-only device.
DeviceBatch largest_batch(const Settings& settings, const Device& device);

/// The loss of a batch, over targets or labels. `carried`: see Decoder::loss. Throws UserError for a model without an
/// output layer.
ops::CrossEntropyResult loss_of(Model& model, layers::ForwardContext& context, const DeviceBatch& batch,
                                const ops::CrossEntropyOptions& options = {},
                                layers::GenerationState* carried = nullptr);

}  // namespace furlong
