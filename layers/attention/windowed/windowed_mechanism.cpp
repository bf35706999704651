#include "layers/attention/windowed/windowed_mechanism.h"

#include "layers/attention/linear/linear_mechanism.h"

#include "layers/attention/softmax/softmax_mechanism.h"

namespace furlong::layers {
namespace {

std::unique_ptr<AttentionMechanism> make_windowed(ParameterStore& store, const std::string& name,
                                                  const AttentionConfig& config) {
  if (config.softmax_window <= 0)
    throw UserError(
        "model.attention.softmax_window: {} with mechanism windowed; expected the number of nearest tokens with exact "
        "weights, at least 1",
        config.softmax_window);
  if (config.normalizer != ops::Normalizer::sum)
    throw UserError(
        "model.attention.normalizer: {} with mechanism windowed; expected sum, which both of its parts share",
        name_of(config.normalizer));
  return std::make_unique<LinearMechanism>(store, name, config, config.softmax_window);
}

/// The cost of softmax over the pairs inside the window, plus that of causal linear attention over all tokens: once, or
/// if bidirectional twice, forward and backward in time.
AttentionCost cost_of_windowed(const AttentionConfig& config, std::int64_t n) {
  const double d = static_cast<double>(config.d_head), heads = static_cast<double>(config.n_heads);
  const AttentionCost inside = softmax_cost(attended_pairs(config.causal, n, config.softmax_window), d);
  AttentionConfig walk = config;
  walk.causal = true;
  AttentionCost sum = linear_cost(walk, n, 0);
  const double walks = config.causal ? 1 : 2;
  sum.forward = walks * sum.forward + heads * inside.forward;
  sum.with_backward = walks * sum.with_backward + heads * inside.with_backward;
  return sum;
}

}  // namespace

MechanismInfo windowed_mechanism() {
  MechanismInfo info{"windowed", "softmax for the nearest tokens and a feature map for all others", make_windowed,
                     cost_of_windowed};
  info.has_features = true;
  info.is_hybrid = true;
  info.past = Past::constant;
  info.window = info.size = &AttentionConfig::softmax_window;
  return info;
}

}  // namespace furlong::layers
