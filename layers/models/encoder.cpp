#include "layers/models/encoder.h"

namespace furlong::layers {
namespace {

ModelConfig trunk_of(const ModelConfig& config, bool labels) {
  require(config.architecture == Architecture::encoder, "encoder: a config with architecture {}",
          name_of(config.architecture));
  ModelConfig trunk = config;
  if (labels) trunk.prediction_head = PredictionHead::none;
  return trunk;
}

}  // namespace

Encoder::Encoder(ParameterStore& store, const ModelConfig& config, const std::optional<LabelHeadConfig>& head,
                 ActivationCheckpointing checkpointing)
    : trunk_(store, trunk_of(config, head.has_value()), checkpointing) {
  if (head) head_.emplace(store, config, *head);
}

const LabelHead& Encoder::head() const {
  require(head_.has_value(), "encoder: no head for labels");
  return *head_;
}

ops::CrossEntropyResult Encoder::masked_token_loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                                   const ops::CrossEntropyOptions& options) {
  return trunk_.loss(context, tokens, targets, options);
}

ops::CrossEntropyResult Encoder::label_loss(ForwardContext& context, const Tensor& tokens, const LabelTargets& targets,
                                            const ops::CrossEntropyOptions& options, Tensor* logits) {
  const Variable states = hidden(context, tokens);
  if (logits) *logits = head().logits(context, states);
  return head().loss(context, states, targets, options);
}

Tensor Encoder::label_logits(ForwardContext& context, const Tensor& tokens) {
  return head().logits(context, hidden(context, tokens));
}

}  // namespace furlong::layers
