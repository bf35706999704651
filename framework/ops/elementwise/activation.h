#pragma once
#include "framework/autodiff/tape.h"
#include "framework/primitives/activation_kind.h"

namespace furlong::ops {

/// f(x) element by element, for any shape with contiguous rows. Saves x. NaN stays NaN.
Variable activation(Tape& tape, const Variable& x, ActivationKind kind);

/// [..., 2f] -> [..., f]: f(gate) * up, where gate is the first half of a row and up the second. silu gives SwiGLU,
/// gelu GeGLU (Shazeer 2020, GLU Variants Improve Transformer). Saves x. Throws ContractError if the last dimension is
/// odd.
Variable gated_activation(Tape& tape, const Variable& x, ActivationKind kind);

}  // namespace furlong::ops
