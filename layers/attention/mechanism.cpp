#include "layers/attention/mechanism.h"

#include "layers/attention/linear/linear_mechanism.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "layers/attention/mixed/mixed_mechanism.h"
#include "layers/attention/softmax/softmax_mechanism.h"
#include "layers/attention/windowed/windowed_mechanism.h"

namespace furlong::layers {

const std::vector<MechanismInfo>& attention_mechanisms() {
  static const std::vector<MechanismInfo> mechanisms{{"softmax", make_softmax_mechanism},
                                                     {"linear", make_linear_mechanism},
                                                     {"windowed", make_windowed_mechanism},
                                                     {"linformer", make_linformer_mechanism}};
  return mechanisms;
}

std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config) {
  if (!config.head_mechanisms.empty()) return make_mixed_mechanism(store, name, config);
  if (config.rotate_numerator && config.mechanism != "linear") {
    throw UserError(
        "model.rotary_placement: numerator cannot be with the mechanism {}, which has no features apart from its exact "
        "weights; take linear, or before_features",
        config.mechanism);
  }
  std::string known;
  for (const MechanismInfo& info : attention_mechanisms()) {
    if (config.mechanism == info.name) return info.make(store, name, config);
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  throw UserError("attention mechanism '{}' is unknown; expected one of {}", config.mechanism, known);
}

}  // namespace furlong::layers
