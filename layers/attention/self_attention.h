#pragma once
#include <optional>

#include "framework/ops/attention/positions/rotary.h"
#include "layers/attention/mechanism.h"
#include "layers/attention/recurrent_state.h"
#include "layers/blocks/norm.h"
#include "layers/linear.h"

namespace furlong::layers {

/// What generation, and training on consecutive segments, keep of one self-attention layer.
struct SelfAttentionState {
  std::unique_ptr<AttentionState> attention;
  Tensor convolution;  // [batch, width - 1, columns of the fused projection]; undefined without short convolution
  std::int64_t bytes() const { return attention->bytes() + (convolution.defined() ? convolution.bytes() : 0); }
  /// A copy with memory of its own. Recurrent states only.
  SelfAttentionState clone() const;
  /// Every tensor of a recurrent state, for checkpoints; names begin with `prefix`.
  void visit(const std::string& prefix, const StateVisitor& visitor);
};

/// x [batch, n, d_model] -> the same: one fused projection to query, key and value, short convolution, norm of queries
/// and keys, rotary positions, the mechanism, and the output projection. Parameters:
/// `name`.query_key_value.{weight,bias}, `name`.short_convolution.weight, `name`.{query_norm,key_norm}.gain [d_head],
/// `name`.output.{weight,bias}, those of adapters (Linear), and the mechanism's.
class SelfAttention {
 public:
  /// `attention` is that of the layer. `rotary` turns queries and keys, where it is not null. Throws UserError for
  /// names that do not exist.
  SelfAttention(ParameterStore& store, const std::string& name, const ModelConfig& config,
                const AttentionConfig& attention, ops::RotaryTable* rotary);
  /// The parameters and the mechanism of `first`, constants and random directions included, under another name.
  SelfAttention(const SelfAttention& first, const std::string& name);

  /// Under context.attention_mask. With `carried` the tokens stand at positions from `first_position`, after those that
  /// it has seen, and it is advanced; no gradient flows into it. Throws UserError where the mechanism's state grows
  /// with length.
  Variable forward(ForwardContext& context, const Variable& x, std::int64_t first_position = 0,
                   SelfAttentionState* carried = nullptr) const;
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const;
  /// The same for tokens at positions from `first_position`, after those that `state` has seen. Nothing may be
  /// recorded.
  Variable extend(ForwardContext& context, const Variable& x, std::int64_t first_position,
                  SelfAttentionState& state) const;
  void redraw(std::uint64_t seed, std::int64_t step) {
    if (!shared_) mechanism_->redraw(seed, step);
  }
  void update_constants() {
    if (!shared_) mechanism_->update_constants();
  }

 private:
  /// What the mechanism is given.
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
  bool shared_ = false;  // the mechanism is another's to redraw
};

}  // namespace furlong::layers
