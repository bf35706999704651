#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// The windowed hybrid: keys nearer than config.softmax_window, on either side where the model is bidirectional, carry
/// softmax's own weight exp(q·k/√d + gate_h), all others the feature map's, under one normaliser; the gate of each head
/// is learned. config.window does not concern it. Throws UserError without a softmax_window.
MechanismInfo windowed_mechanism();

}  // namespace furlong::layers
