#pragma once
#include <functional>
#include <optional>
#include <string>

#include "framework/autodiff/tape.h"
#include "framework/core/random.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/positions/document_positions.h"

namespace furlong::layers {

class AttentionMechanism;

/// One attention layer's inputs and outputs, passed to an observer. The references are valid only during the call. An
/// observer that needs a tensor longer stores the Variable or its value, which also keeps the memory.
struct ObservedAttention {
  /// "blocks.3.attention". It is the prefix of the parameters, except for shared layers, whose parameters are
  /// blocks.0's.
  const std::string& layer;
  const Variable& input;      ///< [batch, n, d_model]: input of the projections, after the norm with pre-norm
  const Variable& query;      ///< [batch, n, n_heads·d_head]: after convolution, norm and rotary positions
  const Variable& key;        ///< [batch, n, n_kv_heads·d_head]: likewise
  const Variable& value;      ///< [batch, n, n_kv_heads·d_head]
  const Variable& output;     ///< [batch, n, n_heads·d_head]: output of the mechanism
  const Variable& projected;  ///< [batch, n, d_model]: after the output projection, before dropout
  const AttentionMechanism& mechanism;
};

/// State that accompanies a batch through a model. The caller owns everything that it refers to, until backward is
/// done.
struct ForwardContext {
  Tape& tape;
  bool training = false;  ///< enables dropout
  // Random numbers are keyed by the run's seed, the optimizer step and the layer's name.
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  /// Global index of the batch's first sequence within the step. With it, random numbers do not depend on how a batch
  /// is split.
  std::uint64_t first_sample = 0;
  /// Tokens of the longest row in any batch of the step, or 0 if all have the same length: dropout numbers elements by
  /// it.
  std::int64_t longest_row = 0;

  ops::AttentionMask attention_mask{};  ///< padding and packed documents, for every attention layer
  /// int32 [batch, n]: the position of each token, if rows continue from different positions. If undefined, positions
  /// start from the state's position, or, with attention_mask.documents, from 0 in each document (own_positions).
  Tensor positions{};

  /// int32 [batch, n]: the segment of each token (BERT's token types), for models with segments. If undefined, all
  /// tokens are in segment 0.
  Tensor segments{};

  /// Set if the tokens are one segment of each sequence and other ranks hold the other segments (context parallelism);
  /// null otherwise. Supported by linear attention without a window. `positions` must give the segment's positions.
  ops::SegmentExchange* exchange = nullptr;

  /// Counts the denominators that linear attention guards (maps with signed features); null: not counted. Must outlive
  /// the tape's backward.
  ops::DenominatorReport* denominators = nullptr;

  /// float64 [1] on the device: the optimizer step, read when ops run, instead of `step`. If undefined, `step` is used.
  Tensor device_step{};

  /// Called by the forward of every self-attention, if set, in the calling thread. For a recomputed block, it is called
  /// at each run, so also during backward.
  std::function<void(const ObservedAttention&)> observe_attention{};

  /// If set, the model returns the hidden states after this many blocks instead of the last: before the final norm,
  /// unless all blocks run.
  std::optional<std::int64_t> blocks_to_run{};

  /// Returns the tape's stream.
  const Stream& stream() const { return tape.stream(); }
  /// Returns the positions of the tokens if they differ from their index in the row; otherwise an undefined tensor.
  Tensor own_positions() const {
    if (positions.defined() || !attention_mask.documents.defined()) return positions;
    return ops::document_positions(stream(), attention_mask.documents);
  }
};

}  // namespace furlong::layers
