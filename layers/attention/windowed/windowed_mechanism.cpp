#include "layers/attention/windowed/windowed_mechanism.h"

#include "layers/attention/linear/linear_mechanism.h"

namespace furlong::layers {

std::unique_ptr<AttentionMechanism> make_windowed_mechanism(ParameterStore& store, const std::string& name,
                                                            const AttentionConfig& config) {
  if (config.softmax_window <= 0)
    throw UserError(
        "model.attention.softmax_window: {} with mechanism windowed; expected the number of nearest tokens that get "
        "exact weights",
        config.softmax_window);
  if (config.normalizer != "sum")
    throw UserError(
        "model.attention.normalizer: {} with mechanism windowed, whose two parts meet under one sum; expected sum",
        config.normalizer);
  return std::make_unique<LinearMechanism>(store, name, config, config.softmax_window);
}

}  // namespace furlong::layers
