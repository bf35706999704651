#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// The windowed hybrid: keys nearer than config.softmax_window carry softmax's own weight exp(q·k/√d + gate_h), those before it the feature
/// map's, under one normaliser; the gate of each head is learned. Causal only. config.window does not concern it. Throws UserError without
/// a softmax_window.
std::unique_ptr<AttentionMechanism> make_windowed_mechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config);

}  // namespace furlong::layers
