#pragma once
#include <functional>
#include <string>

#include "framework/autodiff/tape.h"
#include "framework/core/random.h"
#include "framework/ops/attention_mask.h"
#include "framework/ops/document_positions.h"

namespace furlong::layers {

class AttentionMechanism;

/// One attention of a model as it happens: what went in, heads side by side, rotated and convolved already, and what came out, before the
/// output projection.
struct ObservedAttention {
  const std::string& layer;  ///< its name in the parameter store
  const Variable& query;     ///< [batch, n, n_heads·d_head]
  const Variable& key;       ///< [batch, n, n_kv_heads·d_head]
  const Variable& value;     ///< likewise
  const Variable& output;    ///< [batch, n, n_heads·d_head]
  const AttentionMechanism& mechanism;
};

/// What goes with a batch through a model.
struct ForwardContext {
  Tape& tape;
  bool training = false;   ///< dropout is on
  std::uint64_t seed = 0;  ///< the run's seed, and
  std::uint32_t step = 0;  ///< the optimizer step: with a layer's name they key its random numbers
  std::uint64_t first_sample =
      0;  ///< global number of the batch's first sequence within the step: random numbers do not depend on how it is split

  ops::AttentionMask attention_mask{};  ///< padding and packed documents, for every attention of the model
  /// int32 [batch, n]: the position of each token, where rows go on from different places; undefined: from the state's position on, or,
  /// with attention_mask.documents, from 0 in each document (own_positions).
  Tensor positions{};

  /// float64 [1] on the device: the optimizer step again, read when ops run and in the place of `step`; undefined: `step` it is.
  Tensor device_step{};

  /// Called, where set, by every self-attention's forward; of a block that is recomputed, each time that it runs.
  std::function<void(const ObservedAttention&)> observe_attention{};

  const Stream& stream() const { return tape.stream(); }
  /// The position of each token where it is not its place in the row; otherwise undefined.
  Tensor own_positions() const {
    if (positions.defined() || !attention_mask.documents.defined()) return positions;
    return ops::document_positions(stream(), attention_mask.documents);
  }
};

}  // namespace furlong::layers
