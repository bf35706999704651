#pragma once
#include <optional>

#include "framework/ops/attention/positions/rotary.h"
#include "layers/attention/mechanism.h"
#include "layers/attention/recurrent_state.h"
#include "layers/blocks/norm.h"
#include "layers/linear.h"

namespace furlong::layers {

/// The past of one self-attention layer, in generation and in stateful training.
struct SelfAttentionState {
  std::unique_ptr<AttentionState> attention;
  Tensor convolution;  // [batch, width - 1, columns of the fused projection]; undefined without short convolution
  /// Returns the bytes of device memory that the state takes.
  std::int64_t bytes() const { return attention->bytes() + (convolution.defined() ? convolution.bytes() : 0); }
  std::int64_t bytes_read() const { return bytes() - attention->bytes() + attention->bytes_read(); }
  /// Returns a deep copy. Throws UserError unless the state is recurrent.
  SelfAttentionState clone() const;
  /// See AttentionState::repeated.
  SelfAttentionState repeated(const Stream& stream, std::int64_t batch) const {
    return {attention->repeated(stream, batch), repeated_row(stream, convolution, batch)};
  }
  /// Visits every tensor of a recurrent state, for checkpoints. Names start with `prefix`.
  void visit(const std::string& prefix, const StateVisitor& visitor);
};

/// Self-attention, [batch, n, d_model] -> [batch, n, d_model]: one fused projection to query, key and value, short
/// convolution, norms of queries and keys, rotary positions, the mechanism, and the output projection.
///
/// Parameters: `name`.query_key_value.{weight,bias}, `name`.short_convolution.weight,
/// `name`.{query_norm,key_norm}.gain [d_head], `name`.output.{weight,bias}, and those of adapters (Linear) and of the
/// mechanism.
class SelfAttention {
 public:
  /// Declares the parameters in `store`. `attention` is the config of this layer. `rotary` rotates queries and keys;
  /// null: no rotary positions. `store` and `rotary` must outlive the layer. Throws UserError for unknown names.
  SelfAttention(ParameterStore& store, const std::string& name, const ModelConfig& config,
                const AttentionConfig& attention, ops::RotaryTable* rotary);
  /// Shares the parameters and the mechanism of `first`, including constants and the random projection, under another
  /// name.
  SelfAttention(const SelfAttention& first, const std::string& name);

  /// Computes the layer under context.attention_mask. With `carried`, the tokens follow those in that state, at
  /// positions from `first_position`, and the state is advanced; no gradient flows into it. Throws UserError if the
  /// mechanism's state grows with length.
  Variable forward(ForwardContext& context, const Variable& x, std::int64_t first_position = 0,
                   SelfAttentionState* carried = nullptr) const;
  /// Returns an empty state; see AttentionMechanism::new_state.
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const;
  /// Computes the same as forward for tokens that follow those in `state`, at positions from `first_position`. The tape
  /// must not be recording: create a Tape::NoGradient first.
  Variable extend(ForwardContext& context, const Variable& x, std::int64_t first_position,
                  SelfAttentionState& state) const;
  /// See AttentionMechanism::redraw. Does nothing in a layer that shares another layer's mechanism.
  void redraw(std::uint64_t seed, std::int64_t step) {
    if (!shared_) mechanism_->redraw(seed, step);
  }
  /// See AttentionMechanism::update_constants. Does nothing in a layer that shares another layer's mechanism.
  void update_constants() {
    if (!shared_) mechanism_->update_constants();
  }

 private:
  /// Inputs of the mechanism.
  struct Heads {
    Variable query, key, value;
  };
  Heads heads_of(ForwardContext& context, const Variable& x, std::int64_t first_position,
                 const SelfAttentionState* state) const;
  Variable normed(ForwardContext& context, const Variable& x, const Norm& norm) const;
  Heads split(ForwardContext& context, const Variable& fused) const;

  std::string name_;
  AttentionConfig attention_;
  ops::RotaryTable* rotary_;
  Linear query_key_value_, output_;
  Parameter* convolution_ = nullptr;
  std::optional<Norm> query_norm_, key_norm_;
  std::shared_ptr<AttentionMechanism> mechanism_;
  bool shared_ = false;  // the layer that declared the mechanism redraws it
};

}  // namespace furlong::layers
