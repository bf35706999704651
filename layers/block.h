#pragma once
#include "layers/attention/self_attention.h"
#include "layers/feedforward.h"
#include "layers/norm.h"

namespace furlong::layers {

struct BlockConfig {
  SelfAttentionConfig self_attention;
  std::int64_t d_feedforward = 0;
  std::string activation = "gelu";
  ops::NormKind norm = ops::NormKind::layernorm;
  double norm_epsilon = 1e-5;
  double dropout = 0;
};

/// The residual stream between blocks: `sum` plus `branch`, which the next norm adds while it reads both (one pass less over memory).
struct ResidualStream {
  Variable sum;
  Variable branch;  // undefined before the first block
};

/// `config` with the mechanism that config.layer_mechanisms names for `layer`, where it names any. Throws UserError when their number is
/// not n_layers.
AttentionConfig attention_of_layer(const AttentionConfig& config, std::int64_t layer, std::int64_t n_layers);

/// Pre-norm transformer block: x + attention(norm(x)), then x + feedforward(norm(x)), with dropout on both branches.
class Block {
 public:
  Block(ParameterStore& store, const std::string& name, const BlockConfig& config, ops::RotaryTable* rotary);

  /// `first_position` and `carried` as in SelfAttention::forward.
  ResidualStream forward(ForwardContext& context, const ResidualStream& in, std::int64_t first_position = 0,
                         SelfAttentionState* carried = nullptr) const;
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const {
    return attention_.new_state(batch, max_tokens, dtype, device);
  }
  ResidualStream extend(ForwardContext& context, const ResidualStream& in, std::int64_t first_position, SelfAttentionState& state) const;
  void redraw(std::uint64_t seed, std::int64_t step) { attention_.redraw(seed, step); }
  ops::DenominatorReport take_denominator_report() { return attention_.take_denominator_report(); }
  const std::string& name() const { return name_; }

 private:
  template <class Attend>
  ResidualStream run(ForwardContext& context, const ResidualStream& in, const Attend& attend) const;
  Variable drop(ForwardContext& context, const Variable& x, const char* branch) const;

  std::string name_;
  double dropout_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm feedforward_norm_;
  FeedForward feedforward_;
};

}  // namespace furlong::layers
