#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Exact softmax attention; generation keeps a key-value cache, of little more than the window where there is one.
std::unique_ptr<AttentionMechanism> make_softmax_mechanism(ParameterStore& store, const std::string& name,
                                                           const AttentionConfig& config);

}  // namespace furlong::layers
