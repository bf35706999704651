#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "framework/ops/loss/cross_entropy.h"
#include "layers/blocks/block.h"

namespace furlong::layers {

/// The past of sequences being generated. If every layer's state is recurrent, also the state of stateful training.
struct GenerationState {
  std::int64_t position = 0;  ///< number of tokens processed
  std::vector<SelfAttentionState> layers;
  /// Returns the bytes of device memory of all layers' states.
  std::int64_t bytes() const;
  /// Returns how many of them the last token has read: of a cache, the keys and values that it attends to.
  std::int64_t bytes_read() const;
  /// Returns the state of `batch` sequences that all have the past of this state's only sequence.
  GenerationState repeated(const Stream& stream, std::int64_t batch) const;
  /// Visits every tensor of recurrent states, for checkpoints (`layers.0.attention.sum`, ...). The caller saves
  /// `position`.
  void visit(const StateVisitor& visitor);
};

/// A language model, or the trunk of an encoder. Parameters, as configured:
///  - token_embedding.weight, position_embedding.weight, segment_embedding.weight, embedding_norm.{gain,bias},
///    embedding_projection.{weight,bias};
///  - blocks.N (with shared_layers only blocks.0);
///  - final_norm.{gain,bias} (pre-norm);
///  - prediction.transform.{weight,bias}, prediction.norm.{gain,bias};
///  - classifier.weight (without tied embeddings), output_bias.
class Decoder {
 public:
  /// Declares the parameters in `store`; the caller allocates it afterwards, and it must outlive the decoder. Throws
  /// UserError for unknown names.
  Decoder(ParameterStore& store, const ModelConfig& config,
          ActivationCheckpointing checkpointing = ActivationCheckpointing::elementwise);

  /// Returns the final hidden states [batch, n, d_model] of tokens int32 [batch, n]. With `carried` (from new_state),
  /// the tokens follow those in that state: positions, convolutions and attention continue from it, and it is advanced.
  /// No gradient flows between segments. Throws UserError if a mechanism has no state or one that grows with length
  /// (softmax).
  Variable hidden(ForwardContext& context, const Tensor& tokens, GenerationState* carried = nullptr);
  /// Returns the mean cross-entropy of targets int32 [batch, n]; targets of -1 are ignored. `carried`: see hidden().
  ops::CrossEntropyResult loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                               const ops::CrossEntropyOptions& options = {}, GenerationState* carried = nullptr);
  /// Returns the logits [rows, vocabulary] of hidden states [rows, d_model]: prediction_states · output_weightᵀ +
  /// output_bias. They are float32, or float64 for float64 states.
  Tensor logits(const Stream& stream, const Tensor& hidden) const;
  /// Returns the input of the output projection: `hidden` itself, or with prediction_head transform
  /// norm(activation(dense(hidden))) [..., d_embedding].
  Variable prediction_states(ForwardContext& context, const Variable& hidden) const;
  /// Returns the weight of the output projection [vocabulary, width of prediction_states]: the token embedding's if
  /// tied. Throws ContractError if prediction_head is none.
  const Parameter& output_weight() const {
    require(config_.prediction_head != PredictionHead::none, "a model without an output layer over tokens");
    return *(config_.tied_embeddings ? token_embedding_ : classifier_);
  }
  /// Returns the output bias [vocabulary]; null without one.
  const Parameter* output_bias() const { return output_bias_; }

  /// Computes the attention of one layer (numbered from 0) on `input` [batch, n, d_model], including the output
  /// projection. `input` replaces the attention's own input (with pre-norm, after the norm). The result is what
  /// ObservedAttention calls projected. Gradients are recorded as usual.
  Variable attention_output(ForwardContext& context, std::size_t layer, const Variable& input,
                            std::int64_t first_position = 0) const;

  /// Returns an empty state for `batch` sequences of at most `max_tokens` tokens, including the prompt. Throws
  /// UserError if a mechanism cannot generate.
  GenerationState new_state(std::int64_t batch, std::int64_t max_tokens) const;
  /// Returns the hidden states [batch, n, d_model] of tokens int32 [batch, n] that follow those in `state`, and
  /// advances the state. The tape must not be recording: create a Tape::NoGradient first.
  Variable extend(ForwardContext& context, const Tensor& tokens, GenerationState& state);

  /// Draws the random projections that are due before optimizer step `step` (step 0 draws the first ones) and updates
  /// the constants from the steps before. `only` is the one layer that ran in training in the step before: constants
  /// and statistics of other layers then stay unchanged instead of decaying. Without `only`, updates all layers.
  void redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only = std::nullopt);
  /// Updates the constants of one layer's feature maps from its statistics.
  void update_constants(std::size_t layer) { blocks_[layer]->update_constants(); }
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
  std::size_t blocks_of(const ForwardContext& context) const;
  static Variable unnormed(ForwardContext& context, const ResidualStream& stream);
  Variable normed(ForwardContext& context, const ResidualStream& stream) const;
  std::int64_t keep_replaced(const Tensor& table);

  ModelConfig config_;
  ActivationCheckpointing checkpointing_;
  ParameterStore& store_;
  // Null or empty if the config does not have the part.
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
