#pragma once
#include <functional>
#include <string>

#include "framework/autodiff/tape.h"
#include "framework/core/random.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/positions/document_positions.h"

namespace furlong::layers {

class AttentionMechanism;

/// One attention of a model as it happens. The references, and what they refer to, are good during the call alone: an
/// observer that wants a tensor longer keeps the Variable or its value, and with it the memory.
struct ObservedAttention {
  const std::string&
      layer;  ///< "blocks.3.attention": its parameters' prefix, but of shared layers, where those are of blocks.0
  const Variable& input;  ///< [batch, n, d_model]: what the projections see, after the norm where that stands before
  const Variable& query;  ///< [batch, n, n_heads·d_head], heads side by side, convolved, normalised and rotated already
  const Variable& key;    ///< [batch, n, n_kv_heads·d_head], likewise
  const Variable& value;      ///< [batch, n, n_kv_heads·d_head]
  const Variable& output;     ///< [batch, n, n_heads·d_head]: what the mechanism made of them
  const Variable& projected;  ///< [batch, n, d_model]: after the output projection, before dropout
  const AttentionMechanism& mechanism;
};

/// What goes with a batch through a model.
struct ForwardContext {
  Tape& tape;
  bool training = false;           ///< dropout is on
  std::uint64_t seed = 0;          ///< the run's seed, and
  std::uint32_t step = 0;          ///< the optimizer step: with a layer's name they key its random numbers
  std::uint64_t first_sample = 0;  ///< global number of the batch's first sequence within the step: random numbers do
                                   ///< not depend on how it is split

  ops::AttentionMask attention_mask{};  ///< padding and packed documents, for every attention of the model
  /// int32 [batch, n]: the position of each token, where rows go on from different places; undefined: from the state's
  /// position on, or, with attention_mask.documents, from 0 in each document (own_positions).
  Tensor positions{};

  /// int32 [batch, n]: the segment of each token (BERT's token types), for models that have any; undefined: all are of
  /// segment 0.
  Tensor segments{};

  /// The tokens are one segment of each sequence, of which other processes have the others; null: they are all of it.
  /// For linear attention without a window. `positions` has to say where the segment begins.
  ops::SegmentExchange* exchange = nullptr;

  /// Where linear attention counts the denominators that it guards (maps of signed features); null: nowhere. Outlives
  /// the tape's backward.
  ops::DenominatorReport* denominators = nullptr;

  /// float64 [1] on the device: the optimizer step again, read when ops run and in the place of `step`; undefined:
  /// `step` it is.
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
