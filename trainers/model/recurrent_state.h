#pragma once
#include <string>

#include "datasets/batch.h"
#include "framework/io/checkpoint_file.h"
#include "layers/models/decoder.h"

namespace furlong {

/// The recurrent state of each batch row between steps, for stateful training: truncated backpropagation through time
/// (Williams & Peng 1990). The state covers the whole past of a document; gradients stop at the start of the segment.
class RecurrentState {
 public:
  /// Creates the state of `rows` rows at the start of a document. Throws UserError if a layer's state grows with
  /// sequence length.
  RecurrentState(const layers::Decoder& decoder, std::int64_t rows);

  /// Call this before the forward pass of a batch. Empties the states of its fresh rows, and sets the position of each
  /// row within its document in the context.
  layers::GenerationState& begin(layers::ForwardContext& context, const Batch& batch);

  /// Writes tensors `prefix`/<name>, and the rows' positions as `prefix`/positions.
  void save(CheckpointSink& file, const std::string& prefix) const;
  /// Reads what save() wrote. Throws UserError if a tensor's shape differs.
  void load(const CheckpointReader& file, const std::string& prefix);

 private:
  std::vector<std::int64_t> positions_;    // per row: tokens of its document before the next batch
  mutable layers::GenerationState state_;  // mutable: visitors get non-const access; save() does not change it
  layers::GenerationState empty_;          // of one row
};

}  // namespace furlong
