#include "layers/model_config.h"

#include "layers/attention/mechanism.h"

namespace furlong::layers {

ops::ActivationKind kind_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return ops::ActivationKind::gelu;
    case Activation::gelu_tanh:
      return ops::ActivationKind::gelu_tanh;
    case Activation::relu:
      return ops::ActivationKind::relu;
    case Activation::silu:
    case Activation::swiglu:
      break;
  }
  return ops::ActivationKind::silu;
}

AttentionConfig attention_config(const ModelConfig& config) {
  AttentionConfig attention = config.attention;
  attention.max_sequence_length = config.max_sequence_length;
  attention.causal = config.architecture == Architecture::decoder;
  attention.rotate_numerator = config.rotates(RotaryPlacement::numerator);
  attention.rotary_base = config.rotary_base;
  return attention;
}

AttentionConfig attention_of_layer(const ModelConfig& config, std::int64_t layer) {
  AttentionConfig result = attention_config(config);
  result.layer_mechanisms.clear();
  const auto& mechanisms = config.attention.layer_mechanisms;
  if (mechanisms.empty()) return result;
  require(static_cast<std::int64_t>(mechanisms.size()) == config.n_layers, "{} mechanisms for {} layers",
          mechanisms.size(), config.n_layers);
  const std::string& entry = mechanisms[static_cast<std::size_t>(layer)];
  if (const std::vector<std::string> names = mechanisms_in(entry); names.size() > 1) {
    result.head_mechanisms = names;
  } else {
    result.mechanism = entry;
  }
  return result;
}

}  // namespace furlong::layers
