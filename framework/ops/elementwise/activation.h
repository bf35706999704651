#pragma once
#include "framework/autodiff/tape.h"
#include "framework/primitives/activation_kind.h"

namespace furlong::ops {

/// Returns f(x), element by element, in a new tensor. x has any shape with contiguous rows. Saves x. NaN stays NaN.
/// Throws ContractError if rows are not contiguous.
Variable activation(Tape& tape, const Variable& x, ActivationKind kind);

/// Maps x [..., 2f] to f(gate) * up [..., f], where gate is the first half of a row and up the second. silu gives
/// SwiGLU, gelu GeGLU (Shazeer 2020, GLU Variants Improve Transformer). Saves x. Throws ContractError if the last
/// dimension is odd.
Variable gated_activation(Tape& tape, const Variable& x, ActivationKind kind);

}  // namespace furlong::ops
