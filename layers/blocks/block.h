#pragma once
#include "layers/attention/self_attention.h"
#include "layers/blocks/feedforward.h"
#include "layers/blocks/norm.h"

namespace furlong::layers {

/// The residual stream between blocks: `sum` plus `branch`. The next norm adds the two while it reads them, which saves
/// one pass over memory.
struct ResidualStream {
  Variable sum;
  Variable branch;  // undefined before the first block, and always with post-norm
};

/// Transformer block, with dropout on both branches.
///  - Pre-norm: x + attention(norm(x)), then x + feedforward(norm(x)).
///  - Post-norm: norm(x + attention(x)), then norm(x + feedforward(x)).
/// Parameters: blocks.`layer`.{attention_norm,attention,feedforward_norm,feedforward}.
class Block {
 public:
  /// Declares the parameters of one layer in `store`. `rotary`: null without rotary positions. Both must outlive the
  /// block.
  Block(ParameterStore& store, const ModelConfig& config, std::int64_t layer, ops::RotaryTable* rotary);
  /// Uses the block `first` again as another layer. Both share all parameters and the attention mechanism. The new
  /// layer has its own dropout and its own name in messages and observations.
  Block(const Block& first, std::int64_t layer);

  /// `first_position` and `carried` as in SelfAttention::forward.
  ResidualStream forward(ForwardContext& context, const ResidualStream& in, std::int64_t first_position = 0,
                         SelfAttentionState* carried = nullptr) const;
  /// Returns an empty state; see AttentionMechanism::new_state.
  SelfAttentionState new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const {
    return attention_.new_state(batch, max_tokens, dtype, device);
  }
  /// See SelfAttention::extend.
  ResidualStream extend(ForwardContext& context, const ResidualStream& in, std::int64_t first_position,
                        SelfAttentionState& state) const;
  /// Computes the attention alone on `input`, which replaces the attention's input.
  Variable attention_output(ForwardContext& context, const Variable& input, std::int64_t first_position) const;
  /// See SelfAttention.
  void redraw(std::uint64_t seed, std::int64_t step) { attention_.redraw(seed, step); }
  void update_constants() { attention_.update_constants(); }
  /// Returns "blocks.N", with this layer's own number.
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
