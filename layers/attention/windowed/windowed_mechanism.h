#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// The windowed hybrid of softmax and linear attention. Keys with a distance below config.softmax_window have the exact
/// softmax weight exp(q·k/√d + gate_h), with q and k as the feature map receives them: after the learned matrices of
/// hedgehog, which start as the identity. The window extends to both sides in a bidirectional model. All other keys
/// have the feature map's weight, under one normalizer. The gate of each head is learned. config.window is not used.
/// Throws UserError without a softmax_window.
MechanismInfo windowed_mechanism();

}  // namespace furlong::layers
