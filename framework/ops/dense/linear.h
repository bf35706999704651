#pragma once
#include "framework/autodiff/tape.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// Returns y = x · weightᵀ + bias, with x [..., in_features], weight [out_features, in_features], bias [out_features]
/// or null, and y [..., out_features] in x's dtype. A two-dimensional x may be a view with contiguous rows.
///
/// `activation` is applied to y in the same kernel. Backward would need the value before the activation, which is not
/// stored. Pass an activation only if the tape does not record this op: check tape.records() for x, weight and bias.
///
/// Throws ContractError if the shapes do not match, or if an activation is passed while the tape records the op.
Variable linear(Tape& tape, const Variable& x, const Variable& weight, const Variable* bias,
                GemmEpilogue::Activation activation = GemmEpilogue::Activation::none);

}  // namespace furlong::ops
