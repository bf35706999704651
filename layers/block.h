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

/// Pre-norm transformer block: x + attention(norm(x)), then x + feedforward(norm(x)), with dropout on both branches.
class Block {
 public:
  Block(ParameterStore& store, const std::string& name, const BlockConfig& config, ops::RotaryTable* rotary);

  ResidualStream forward(ForwardContext& context, const ResidualStream& in) const;
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const {
    return attention_.new_state(batch, max_tokens, dtype, device);
  }
  ResidualStream extend(ForwardContext& context, const ResidualStream& in, std::int64_t first_position, SelfAttentionState& state) const;
  void redraw(std::uint64_t seed, std::int64_t step) { attention_.redraw(seed, step); }
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
