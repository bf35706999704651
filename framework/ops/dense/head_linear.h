#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Multiplies each head's columns by the head's own matrix: y_h = x_h · weight_hᵀ. x [batch, n, n_heads·d] with
/// contiguous rows (a column range is allowed), weight [n_heads, d_out, d] in x's dtype. Returns [batch, n,
/// n_heads·d_out]. Sums are accumulated as in gemm(). Throws ContractError if shapes do not match.
Variable head_linear(Tape& tape, const Variable& x, const Variable& weight, std::int64_t n_heads);

}  // namespace furlong::ops
