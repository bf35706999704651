#pragma once
#include "layers/attention/self_attention.h"
#include "layers/blocks/feedforward.h"
#include "layers/blocks/norm.h"

namespace furlong::layers {

/// Where norms stand: before attention and feedforward, whose outputs are added to a residual stream that no norm
/// touches (GPT-2, Llama), or after the additions, on the stream itself (BERT; Vaswani et al. 2017).
enum class NormPlacement : std::uint8_t { before, after };

struct BlockConfig {
  SelfAttentionConfig self_attention;
  std::int64_t d_feedforward = 0;
  std::string activation = "gelu";
  ops::NormKind norm = ops::NormKind::layernorm;
  double norm_epsilon = 1e-5;
  NormPlacement norm_placement = NormPlacement::before;
  double dropout = 0;
};

/// The residual stream between blocks: `sum` plus `branch`, which the next norm adds while it reads both (one pass less
/// over memory).
struct ResidualStream {
  Variable sum;
  Variable branch;  // undefined before the first block, and always with norms after the additions
};

/// `config` with the mechanism, or those of the heads, that config.layer_mechanisms names for `layer`, where it names
/// any. Throws UserError when their number is not n_layers.
AttentionConfig attention_of_layer(const AttentionConfig& config, std::int64_t layer, std::int64_t n_layers);

/// Transformer block, with dropout on both branches. Norms before: x + attention(norm(x)), then x +
/// feedforward(norm(x)). After: norm(x + attention(x)), then norm(x + feedforward(x)). Parameters:
/// `name`.{attention_norm,attention,feedforward_norm,feedforward}.
class Block {
 public:
  Block(ParameterStore& store, const std::string& name, const BlockConfig& config, ops::RotaryTable* rotary);
  /// The same block once more, as another layer: its parameters, and all that its attention has, are those of `first`;
  /// its dropout and its name in messages and observations are its own.
  Block(const Block& first, const std::string& name);

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
