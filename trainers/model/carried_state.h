#pragma once
#include <string>

#include "datasets/batch.h"
#include "framework/io/checkpoint_file.h"
#include "layers/models/decoder.h"

namespace furlong {

/// What the rows of a batch have seen of their documents so far, from one step to the next: truncated backpropagation
/// through time (Williams & Peng 1990), with the whole past in the state and gradients that end at the segment.
class CarriedState {
 public:
  /// Of rows that have seen nothing. Throws UserError where a mechanism's state grows with length.
  CarriedState(const layers::Decoder& decoder, std::int64_t rows);

  /// Before a batch goes through the model: empties the states of its fresh rows, and puts into the context where each
  /// row has got to in its document.
  layers::GenerationState& begin(layers::ForwardContext& context, const Batch& batch);

  /// Tensors `prefix`/<name>, and `prefix`/positions for the rows.
  void save(CheckpointSink& file, const std::string& prefix) const;
  /// Throws UserError for tensors of another shape.
  void load(const CheckpointReader& file, const std::string& prefix);

 private:
  std::vector<std::int64_t> positions_;    // of each row: tokens of its document before the batch that comes
  mutable layers::GenerationState state_;  // visiting it can change it, and does not in save()
  layers::GenerationState empty_;          // of one row
};

}  // namespace furlong
