#pragma once
#include "framework/ops/elementwise/activation.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {

/// y = f(x · input_weightᵀ + input_bias) · output_weightᵀ + output_bias, the two-layer map of a transformer block
/// (Vaswani et al. 2017, equation 2): x [..., inner], input_weight [hidden, inner], output_weight [outer, hidden],
/// biases [hidden] and [outer] or null; y [..., outer], x's dtype. x may be a view with contiguous rows if it has two
/// dimensions.
///
/// One node of the tape. It keeps x and what f is taken of, h = x · input_weightᵀ + input_bias [..., hidden]; f(h) is
/// made again in backward where the tape remakes values, and kept too where it does not. Values and gradients are those
/// of linear, activation, linear, bit for bit, save where a GPU's library works in the epilogue of a product
/// (GemmEpilogue). Where nothing is kept for backward, f rides along with the product, and the last bits are then not
/// those of the op. Throws ContractError on shapes that do not fit.
Variable feed_forward(Tape& tape, const Variable& x, const Variable& input_weight, const Variable* input_bias,
                      const Variable& output_weight, const Variable* output_bias, ActivationKind kind);

}  // namespace furlong::ops
