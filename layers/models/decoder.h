#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "framework/ops/loss/cross_entropy.h"
#include "layers/blocks/block.h"

namespace furlong::layers {

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

/// A language model, or an encoder's trunk. Parameters: token_embedding.weight; as configured
/// position_embedding.weight, segment_embedding.weight, embedding_norm.{gain,bias}, embedding_projection.{weight,bias};
/// blocks.N (shared_layers: blocks.0 alone); final_norm.{gain,bias} (norms before); prediction.transform.{weight,bias}
/// and prediction.norm.{gain,bias}; classifier.weight (embeddings not tied); output_bias.
class Decoder {
 public:
  /// Declares its parameters in `store`, which the caller then allocates. Throws UserError for names that do not exist.
  Decoder(ParameterStore& store, const ModelConfig& config, Recompute recompute = Recompute::elementwise);

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
    require(config_.prediction_head != PredictionHead::none, "a model without an output layer over tokens");
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
  const ModelConfig& config() const { return config_; }

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

  ModelConfig config_;
  Recompute recompute_;
  ParameterStore& store_;
  // Null and empty where the config has none.
  Parameter* token_embedding_;
  Parameter* position_embedding_ = nullptr;
  Parameter* segment_embedding_ = nullptr;
  Parameter* classifier_ = nullptr;
  Parameter* output_bias_ = nullptr;
  std::optional<Norm> embedding_norm_, final_norm_, prediction_norm_;
  std::optional<Linear> embedding_projection_, prediction_transform_;
  Tensor sinusoidal_, zero_segments_;
  std::unique_ptr<ops::RotaryTable> rotary_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Tensor> replaced_;  // keep_replaced
};

}  // namespace furlong::layers
