#pragma once
#include "framework/autodiff/tape.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// y = x · weightᵀ + bias: x [..., inner], weight [outer, inner], bias [outer] or null; y [..., outer], x's dtype. x
/// may be a view with contiguous rows if it has two dimensions. With `activation`, y is activated in the same pass;
/// allowed only where nothing is recorded (backward needs the value before it): ask tape.records() first.
Variable linear(Tape& tape, const Variable& x, const Variable& weight, const Variable* bias,
                GemmEpilogue::Activation activation = GemmEpilogue::Activation::none);

}  // namespace furlong::ops
