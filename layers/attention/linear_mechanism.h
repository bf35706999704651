#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Linear attention with the config's feature map. Random directions are the buffer `name`.directions [m, d_head], one set for all heads of
/// the layer.
std::unique_ptr<AttentionMechanism> make_linear_mechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config);

}  // namespace furlong::layers
