#pragma once
// Models whose settings come from a file that may be hostile.
#include <string>

#include "trainers/model/model.h"

namespace furlong {

/// What a file stores of a model.
struct StoredModel {
  Settings settings;
  Vocabulary vocabulary;
  std::int64_t elements = 0;  ///< of all tensors
  std::string origin;         ///< for messages
};

/// Makes a model whose weights are zero, to be read from the file. Throws UserError, before memory is allocated, if its
/// parameters and buffers have more elements than the file stores.
Model make_empty_model(const StoredModel& stored, const Device& device, std::optional<DType> compute,
                       const Frozen& frozen);

/// Returns what a checkpoint stores.
StoredModel stored_model(const CheckpointReader& checkpoint);

}  // namespace furlong
