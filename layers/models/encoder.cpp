#include "layers/models/encoder.h"

namespace furlong::layers {
namespace {

ops::Pooling pooling_of(const std::string& name) {
  if (name == "mean") return ops::Pooling::mean;
  if (name == "class_token") return ops::Pooling::first;
  throw UserError("objective.pooling '{}' is unknown; expected mean or class_token", name);
}

}  // namespace

DecoderConfig Encoder::trunk_of(const EncoderConfig& config) {
  DecoderConfig trunk = config.trunk;
  trunk.attention.causal = false;
  trunk.predicts_tokens = config.head == EncoderConfig::Head::masked_tokens;
  return trunk;
}

Encoder::Encoder(ParameterStore& store, const EncoderConfig& config)
    : config_(config), trunk_(store, trunk_of(config)) {
  config_.trunk = trunk_.config();
  if (config.head == EncoderConfig::Head::masked_tokens) return;
  head_.emplace(store, LabelHeadConfig{config.trunk.d_model, config.n_classes, pooling_of(config.pooling),
                                       config.head == EncoderConfig::Head::matching, config.trunk.dropout,
                                       config.trunk.initializer_range});
}

const LabelHead& Encoder::head() const {
  require(head_.has_value(), "an encoder without a head for labels");
  return *head_;
}

ops::CrossEntropyResult Encoder::masked_token_loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                                   const ops::CrossEntropyOptions& options) {
  return trunk_.loss(context, tokens, targets, options);
}

ops::CrossEntropyResult Encoder::label_loss(ForwardContext& context, const Tensor& tokens, const Tensor& labels,
                                            const ops::CrossEntropyOptions& options) {
  return head().loss(context, hidden(context, tokens), labels, options);
}

Tensor Encoder::label_logits(ForwardContext& context, const Tensor& tokens) {
  return head().logits(context, hidden(context, tokens));
}

}  // namespace furlong::layers
