#pragma once
#include <memory>
#include <optional>
#include <string>

#include "layers/models/decoder.h"
#include "layers/models/heads.h"

namespace furlong::layers {

/// A bidirectional model with one head. context.attention_mask.keys marks padding; padding tokens may have any id of
/// the vocabulary. With short convolution a token still depends only on tokens before it there, so padding must follow
/// the tokens.
class Encoder {
 public:
  /// Declares the parameters in `store`; the caller allocates it afterwards, and it must outlive the encoder. `head` is
  /// a head for labels that replaces the output layer over tokens. Throws UserError for unknown names.
  Encoder(ParameterStore& store, const ModelConfig& config, const std::optional<LabelHeadConfig>& head,
          ActivationCheckpointing checkpointing = ActivationCheckpointing::elementwise);

  /// Returns the final hidden states [rows, n, d_model] of tokens int32 [rows, n].
  Variable hidden(ForwardContext& context, const Tensor& tokens) { return trunk_.hidden(context, tokens); }

  /// Returns the mean cross-entropy of masked tokens. Targets are int32 [rows, n], -1 for tokens that are not masked.
  /// The output layer is the decoder's.
  ops::CrossEntropyResult masked_token_loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                            const ops::CrossEntropyOptions& options = {});
  /// Returns the mean loss of labels (LabelHead::loss); labels of -1 are ignored. A sample is one row, or the rows 2i
  /// and 2i + 1 (pairs). If `logits` is not null, it receives the logits of the labels (LabelHead::logits).
  ops::CrossEntropyResult label_loss(ForwardContext& context, const Tensor& tokens, const LabelTargets& targets,
                                     const ops::CrossEntropyOptions& options = {}, Tensor* logits = nullptr);
  /// Returns the logits of the labels [samples, n_classes]. Throws ContractError without a head for labels, as
  /// label_loss() does.
  Tensor label_logits(ForwardContext& context, const Tensor& tokens);

  /// The output layer over tokens (masked_tokens) and single attention layers; see the functions of Decoder.
  Tensor logits(const Stream& stream, const Tensor& hidden) const { return trunk_.logits(stream, hidden); }
  Variable prediction_states(ForwardContext& context, const Variable& hidden) const {
    return trunk_.prediction_states(context, hidden);
  }
  const Parameter& output_weight() const { return trunk_.output_weight(); }
  const Parameter* output_bias() const { return trunk_.output_bias(); }
  Variable attention_output(ForwardContext& context, std::size_t layer, const Variable& input,
                            std::int64_t first_position = 0) const {
    return trunk_.attention_output(context, layer, input, first_position);
  }

  /// See Decoder::redraw.
  void redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only = std::nullopt) {
    trunk_.redraw(seed, step, only);
  }
  /// See Decoder::update_constants.
  void update_constants(std::size_t layer) { trunk_.update_constants(layer); }
  const ModelConfig& config() const { return trunk_.config(); }

 private:
  const LabelHead& head() const;

  Decoder trunk_;
  std::optional<LabelHead> head_;
};

}  // namespace furlong::layers
