#pragma once
#include <memory>
#include <vector>

#include "framework/ops/cross_entropy.h"
#include "layers/block.h"

namespace furlong::layers {

/// A decoder language model. GPT-2 (layernorm, biases, gelu_tanh, learned positions, tied embeddings) and Llama (rmsnorm, swiglu, rotary,
/// grouped key-value heads) are both just values of this. All sizes are resolved: nothing is 0 that has to be known.
struct DecoderConfig {
  std::int64_t vocabulary_size = 0, n_layers = 0, d_model = 0, d_feedforward = 0, max_sequence_length = 0;
  AttentionConfig attention;
  std::string activation = "gelu";
  std::string norm = "layernorm";
  double norm_epsilon = 1e-5;
  bool bias = true;
  bool tied_embeddings = true;
  std::string position = "rotary";  ///< none, learned, sinusoidal, rotary
  double rotary_base = 10000;
  /// before_features: queries and keys are rotated; numerator: only the features that weigh values (linear attention)
  std::string rotary_placement = "before_features";
  double dropout = 0;
  std::int64_t short_convolution = 0;
  double initializer_range = 0.02;
  bool recompute_elementwise = true;  ///< norms and activations are made again in backward from what it keeps anyway: the same bits
  bool recompute_blocks = false;  ///< keep only the residual stream between blocks for backward, and run each block again there
};

/// The past of sequences being generated, or, where every layer's state is recurrent, of long sequences trained on segment by segment.
struct GenerationState {
  std::int64_t position = 0;  ///< tokens seen
  std::vector<SelfAttentionState> layers;
  std::int64_t bytes() const;
  /// Every tensor of recurrent states, for checkpoints (`layers.0.attention.sum`, ...); `position` is the caller's to keep.
  void visit(const StateVisitor& visitor);
};

class Decoder {
 public:
  /// Declares its parameters in `store`, which the caller then allocates. Throws UserError for names that do not exist.
  Decoder(ParameterStore& store, const DecoderConfig& config);

  /// Final hidden states [batch, n, d_model] of tokens int32 [batch, n]. With `carried` (of new_state) the tokens follow those that it has
  /// seen: positions, convolutions and attention go on where they ended, no gradient flows across the border, and it is advanced. Throws
  /// UserError where a mechanism's state grows with length (softmax) or there is none.
  Variable hidden(ForwardContext& context, const Tensor& tokens, GenerationState* carried = nullptr);
  /// Mean cross-entropy of targets int32 [batch, n] (-1: left out).
  ops::CrossEntropyResult loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                               const ops::CrossEntropyOptions& options = {}, GenerationState* carried = nullptr);
  /// Logits [rows, vocabulary], float32 (float64 in tests), of hidden states [rows, d_model].
  Tensor logits(const Stream& stream, const Tensor& hidden) const;

  /// For sequences of at most `max_tokens`, prompt included.
  GenerationState new_state(std::int64_t batch, std::int64_t max_tokens) const;
  /// Hidden states of tokens that follow those in `state`. Nothing may be recorded.
  Variable extend(ForwardContext& context, const Tensor& tokens, GenerationState& state);

  /// Random directions that are due before optimizer step `step`; step 0 gives the model its first.
  void redraw(std::uint64_t seed, std::int64_t step);
  /// Denominators of all layers since the last call, a recomputed block counted once; forgets them.
  ops::DenominatorReport take_denominator_report();
  const DecoderConfig& config() const { return config_; }

 private:
  ResidualStream run_block(ForwardContext& context, std::size_t layer, const ResidualStream& in, GenerationState* carried) const;
  ResidualStream recompute_block(ForwardContext& context, std::size_t layer, const ResidualStream& in, GenerationState* carried) const;
  Variable embedded(ForwardContext& context, const Tensor& tokens, std::int64_t first_position);
  const Parameter& classifier() const { return *(config_.tied_embeddings ? token_embedding_ : classifier_); }

  DecoderConfig config_;
  ParameterStore& store_;
  Parameter* token_embedding_;
  Parameter* position_embedding_ = nullptr;
  Parameter* classifier_ = nullptr;
  Tensor sinusoidal_;
  std::unique_ptr<ops::RotaryTable> rotary_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> final_norm_;
};

}  // namespace furlong::layers
