#pragma once
#include "framework/ops/elementwise/activation.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// y = f(x · input_weightᵀ + input_bias) · output_weightᵀ + output_bias, the two-layer network of a transformer block
/// (Vaswani et al. 2017, equation 2).
///   x              [..., in_features]; a two-dimensional x may be a view with contiguous rows
///   input_weight   [hidden, in_features], input_bias [hidden] or null
///   output_weight  [out_features, hidden], output_bias [out_features] or null
/// Returns y [..., out_features] in x's dtype.
///
/// Records one node. It saves x and the pre-activation h = x · input_weightᵀ + input_bias [..., hidden]. f(h) is
/// recomputed in backward if Tape::recomputes_values(), and saved otherwise. Values and gradients are those of linear,
/// activation, linear, bit for bit, except where a GPU library fuses the epilogue of a product (GemmEpilogue). If
/// nothing is saved for backward, f is fused into the product, and the last bits may differ from those of the separate
/// op. Throws ContractError if shapes do not match.
Variable feed_forward(Tape& tape, const Variable& x, const Variable& input_weight, const Variable* input_bias,
                      const Variable& output_weight, const Variable* output_bias, ActivationKind kind);

}  // namespace furlong::ops
