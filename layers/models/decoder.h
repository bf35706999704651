#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "framework/ops/loss/cross_entropy.h"
#include "layers/blocks/block.h"

namespace furlong::layers {

/// A decoder language model. GPT-2 (layernorm, biases, gelu_tanh, learned positions, tied embeddings), Llama (rmsnorm,
/// swiglu, rotary, grouped key-value heads) and, as an encoder's trunk, BERT (norms after, of embeddings too, segments,
/// a transform in front of the output) and ALBERT (one block for all layers, narrow embeddings) are just values of
/// this. All sizes are resolved: nothing is 0 that has to be known.
struct DecoderConfig {
  std::int64_t vocabulary_size = 0, n_layers = 0, d_model = 0, d_feedforward = 0, max_sequence_length = 0;
  AttentionConfig attention;
  std::string activation = "gelu";
  std::string norm = "layernorm";
  double norm_epsilon = 1e-5;
  std::string norm_placement = "before";  ///< before, after (then there is no final norm)
  bool embedding_norm = false;            ///< of the sum of token, position and segment embeddings
  std::string query_key_norm = "none";    ///< none, rmsnorm
  bool bias = true;
  bool shared_layers = false;  ///< one block's parameters for all layers
  std::int64_t d_embedding =
      0;  ///< width of the embeddings, which a linear map brings to d_model; 0: d_model, without a map
  std::int64_t n_segments = 0;  ///< rows of the segment embedding; 0: there is none
  bool tied_embeddings = true;
  /// linear; transform: a dense layer, the activation and a norm in front of the output product; none: as
  /// predicts_tokens false
  std::string prediction_head = "linear";
  bool predicts_tokens = true;      ///< false: hidden states are all, and there is no output layer
  bool output_bias = false;         ///< a bias for each token of the vocabulary
  std::string position = "rotary";  ///< none, learned, sinusoidal, rotary
  double rotary_base = 10000;
  ops::RotaryScaling rotary_scaling;
  /// before_features: queries and keys are rotated; numerator: only the features that weigh values (linear attention)
  std::string rotary_placement = "before_features";
  double dropout = 0;
  std::int64_t short_convolution = 0;
  double initializer_range = 0.02;
  AdapterConfig adapter;
  bool recompute_elementwise =
      true;  ///< norms and activations are made again in backward from what it keeps anyway: the same bits
  bool recompute_blocks =
      false;  ///< keep only the residual stream between blocks for backward, and run each block again there
};

/// The past of sequences being generated, or, where every layer's state is recurrent, of long sequences trained on
/// segment by segment.
struct GenerationState {
  std::int64_t position = 0;  ///< tokens seen
  std::vector<SelfAttentionState> layers;
  std::int64_t bytes() const;
  /// Every tensor of recurrent states, for checkpoints (`layers.0.attention.sum`, ...); `position` is the caller's to
  /// keep.
  void visit(const StateVisitor& visitor);
};

/// Parameters: token_embedding.weight; as configured position_embedding.weight, segment_embedding.weight,
/// embedding_norm.{gain,bias}, embedding_projection.{weight,bias}; blocks.N (shared_layers: blocks.0 alone);
/// final_norm.{gain,bias} (norms before); prediction.transform.{weight,bias} and prediction.norm.{gain,bias};
/// classifier.weight (embeddings not tied); output_bias.
class Decoder {
 public:
  /// Declares its parameters in `store`, which the caller then allocates. Throws UserError for names that do not exist.
  Decoder(ParameterStore& store, const DecoderConfig& config);

  /// Final hidden states [batch, n, d_model] of tokens int32 [batch, n]. With `carried` (of new_state) the tokens
  /// follow those that it has seen: positions, convolutions and attention go on where they ended, no gradient flows
  /// across the border, and it is advanced. Throws UserError where a mechanism's state grows with length (softmax) or
  /// there is none.
  Variable hidden(ForwardContext& context, const Tensor& tokens, GenerationState* carried = nullptr);
  /// Mean cross-entropy of targets int32 [batch, n] (-1: left out).
  ops::CrossEntropyResult loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                               const ops::CrossEntropyOptions& options = {}, GenerationState* carried = nullptr);
  /// Logits [rows, vocabulary], float32 (float64 in tests), of hidden states [rows, d_model]: prediction_states ·
  /// output_weightᵀ + output_bias.
  Tensor logits(const Stream& stream, const Tensor& hidden) const;
  /// What the output product is taken of: `hidden` itself, or with prediction_head transform
  /// norm(activation(dense(hidden))) [..., d_embedding].
  Variable prediction_states(ForwardContext& context, const Variable& hidden) const;
  /// [vocabulary, width of prediction_states]; the token embedding's where that is tied.
  const Parameter& output_weight() const {
    require(config_.predicts_tokens, "a model without an output layer over tokens");
    return *(config_.tied_embeddings ? token_embedding_ : classifier_);
  }
  /// [vocabulary], or null.
  const Parameter* output_bias() const { return output_bias_; }

  /// The attention of one layer alone (from 0) on `input` [batch, n, d_model], which stands where the block's attention
  /// has its own (after the norm where that stands before), output projection included: what ObservedAttention calls
  /// projected. Recorded as usual.
  Variable attention_output(ForwardContext& context, std::size_t layer, const Variable& input,
                            std::int64_t first_position = 0) const;

  /// For sequences of at most `max_tokens`, prompt included.
  GenerationState new_state(std::int64_t batch, std::int64_t max_tokens) const;
  /// Hidden states of tokens that follow those in `state`. Nothing may be recorded.
  Variable extend(ForwardContext& context, const Tensor& tokens, GenerationState& state);

  /// Random directions that are due before optimizer step `step` (step 0 gives the model its first), and constants from
  /// the steps before. `only`: the one layer that the step before has run in training; the constants of others, and the
  /// statistics that they are made of, stay as they are, instead of fading in steps that they had no part in.
  /// Undefined: all layers.
  void redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only = std::nullopt);
  const DecoderConfig& config() const { return config_; }

 private:
  ResidualStream run_block(ForwardContext& context, std::size_t layer, const ResidualStream& in,
                           GenerationState* carried) const;
  ResidualStream recompute_block(ForwardContext& context, std::size_t layer, const ResidualStream& in,
                                 GenerationState* carried) const;
  void declare_embeddings();
  void declare_blocks();
  void declare_output();
  Variable embedded(ForwardContext& context, const Tensor& tokens, std::int64_t first_position);
  Variable position_table(ForwardContext& context, std::int64_t needed);
  Variable segments_of(ForwardContext& context, const Tensor& tokens);
  Variable normed(ForwardContext& context, const ResidualStream& stream) const;
  std::int64_t keep_replaced(const Tensor& table);

  DecoderConfig config_;
  ParameterStore& store_;
  // Null and empty where the config has none.
  Parameter* token_embedding_;
  Parameter* position_embedding_ = nullptr;
  Parameter* segment_embedding_ = nullptr;
  Parameter* classifier_ = nullptr;
  Parameter* output_bias_ = nullptr;
  std::optional<Norm> embedding_norm_, final_norm_, prediction_norm_;
  std::optional<Linear> embedding_projection_, prediction_transform_;
  ops::ActivationKind prediction_activation_{};
  Tensor sinusoidal_, zero_segments_;
  std::unique_ptr<ops::RotaryTable> rotary_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Tensor> replaced_;  // keep_replaced
};

}  // namespace furlong::layers
