#pragma once
#include "layers/attention/self_attention.h"
#include "layers/blocks/feedforward.h"
#include "layers/blocks/norm.h"

namespace furlong::layers {

/// The residual stream between blocks: `sum` plus `branch`, which the next norm adds while it reads both (one pass less
/// over memory).
struct ResidualStream {
  Variable sum;
  Variable branch;  // undefined before the first block, and always with norms after the additions
};

/// Transformer block, with dropout on both branches. Norms before: x + attention(norm(x)), then x +
/// feedforward(norm(x)). After: norm(x + attention(x)), then norm(x + feedforward(x)). Parameters:
/// blocks.`layer`.{attention_norm,attention,feedforward_norm,feedforward}.
class Block {
 public:
  Block(ParameterStore& store, const ModelConfig& config, std::int64_t layer, ops::RotaryTable* rotary);
  /// The same block once more, as another layer: its parameters, and all that its attention has, are those of `first`;
  /// its dropout and its name in messages and observations are its own.
  Block(const Block& first, std::int64_t layer);

  /// `first_position` and `carried` as in SelfAttention::forward.
  ResidualStream forward(ForwardContext& context, const ResidualStream& in, std::int64_t first_position = 0,
                         SelfAttentionState* carried = nullptr) const;
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const {
    return attention_.new_state(batch, max_tokens, dtype, device);
  }
  ResidualStream extend(ForwardContext& context, const ResidualStream& in, std::int64_t first_position,
                        SelfAttentionState& state) const;
  /// The attention alone, on what stands in the place of its input.
  Variable attention_output(ForwardContext& context, const Variable& input, std::int64_t first_position) const;
  void redraw(std::uint64_t seed, std::int64_t step) { attention_.redraw(seed, step); }
  void update_constants() { attention_.update_constants(); }
  const std::string& name() const { return name_; }

 private:
  template <class Attend>
  ResidualStream run(ForwardContext& context, const ResidualStream& in, const Attend& attend) const;
  Variable drop(ForwardContext& context, const Variable& x, const char* branch) const;

  std::string name_;
  NormPlacement norm_placement_;
  double dropout_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm feedforward_norm_;
  FeedForward feedforward_;
};

}  // namespace furlong::layers
