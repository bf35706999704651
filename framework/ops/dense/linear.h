#pragma once
#include "framework/autodiff/tape.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// y = x · weightᵀ + bias: x [..., inner], weight [outer, inner], bias [outer] or null; y [..., outer] in x's dtype. A
/// two-dimensional x may be a view with contiguous rows. `activation` is applied to y in the same pass. It is allowed
/// only if nothing is recorded, because backward needs the value before the activation: check tape.records() first.
Variable linear(Tape& tape, const Variable& x, const Variable& weight, const Variable* bias,
                GemmEpilogue::Activation activation = GemmEpilogue::Activation::none);

}  // namespace furlong::ops
