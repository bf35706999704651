#pragma once
#include <memory>
#include <optional>
#include <string>

#include "layers/models/decoder.h"
#include "layers/models/heads.h"

namespace furlong::layers {

/// A bidirectional model with one head. Padding is told by context.attention_mask.keys; tokens there may be any of the
/// vocabulary. With short convolution a token still sees only those before it there, so that padding belongs behind the
/// tokens.
class Encoder {
 public:
  /// Declares its parameters in `store`, which the caller then allocates. `head`: one for labels, in the place of the
  /// output layer over tokens. Throws UserError for names that do not exist.
  Encoder(ParameterStore& store, const ModelConfig& config, const std::optional<LabelHeadConfig>& head,
          Recompute recompute = Recompute::elementwise);

  /// Final hidden states [rows, n, d_model] of tokens int32 [rows, n].
  Variable hidden(ForwardContext& context, const Tensor& tokens) { return trunk_.hidden(context, tokens); }

  /// Mean cross-entropy of the tokens that were hidden: targets int32 [rows, n], -1 for all others. The output layer is
  /// a decoder's.
  ops::CrossEntropyResult masked_token_loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                            const ops::CrossEntropyOptions& options = {});
  /// Mean cross-entropy of labels int32 [samples], -1 for those left out; a sample is a row (classification) or rows 2i
  /// and 2i + 1 (matching).
  ops::CrossEntropyResult label_loss(ForwardContext& context, const Tensor& tokens, const Tensor& labels,
                                     const ops::CrossEntropyOptions& options = {});
  /// Logits of the labels [samples, n_classes].
  Tensor label_logits(ForwardContext& context, const Tensor& tokens);

  /// The output layer over tokens (masked_tokens) and single attentions: as the decoder's functions of these names.
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

  void redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only = std::nullopt) {
    trunk_.redraw(seed, step, only);
  }
  const ModelConfig& config() const { return trunk_.config(); }

 private:
  const LabelHead& head() const;

  Decoder trunk_;
  std::optional<LabelHead> head_;
};

}  // namespace furlong::layers
