#pragma once
#include "framework/ops/rotary.h"
#include "layers/attention/mechanism.h"
#include "layers/attention/recurrent_state.h"
#include "layers/linear.h"

namespace furlong::layers {

struct SelfAttentionConfig {
  AttentionConfig attention;
  std::int64_t d_model = 0;
  bool bias = true;
  std::int64_t short_convolution = 0;  ///< width of the causal depthwise convolution on query, key and value; 0 = none
  double initial_deviation = 0.02, output_deviation = 0.02;
};

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

/// x [batch, n, d_model] -> the same: one fused projection to query, key and value, short convolution, rotary positions, the mechanism, and
/// the output projection. Parameters: `name`.query_key_value.{weight,bias}, `name`.short_convolution.weight, `name`.output.{weight,bias}.
class SelfAttention {
 public:
  SelfAttention(ParameterStore& store, const std::string& name, const SelfAttentionConfig& config, ops::RotaryTable* rotary);

  /// Under context.attention_mask. With `carried` the tokens stand at positions from `first_position`, after those that it has seen, and it
  /// is advanced; no gradient flows into it. Throws UserError where the mechanism's state grows with length.
  Variable forward(ForwardContext& context, const Variable& x, std::int64_t first_position = 0,
                   SelfAttentionState* carried = nullptr) const;
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const;
  /// The same for tokens at positions from `first_position`, after those that `state` has seen. Nothing may be recorded.
  Variable extend(ForwardContext& context, const Variable& x, std::int64_t first_position, SelfAttentionState& state) const;
  void redraw(std::uint64_t seed, std::int64_t step) { mechanism_->redraw(seed, step); }
  ops::DenominatorReport take_denominator_report() { return mechanism_->take_denominator_report(); }

 private:
  Variable projected(ForwardContext& context, const Variable& x, std::int64_t first_position, const SelfAttentionState* state) const;
  std::vector<std::int64_t> widths() const;

  std::string name_;
  SelfAttentionConfig config_;
  ops::RotaryTable* rotary_;  // null: no rotary positions of queries and keys
  Linear query_key_value_, output_;
  Parameter* convolution_ = nullptr;
  std::unique_ptr<AttentionMechanism> mechanism_;
};

}  // namespace furlong::layers
