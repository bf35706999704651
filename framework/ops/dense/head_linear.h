#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Each head's columns times a matrix of its own, y_h = x_h · weight_hᵀ: x [batch, n, n_heads·d], of which a view with
/// contiguous rows (a column range) will do, weight [n_heads, d_out, d] in x's dtype; returns [batch, n,
/// n_heads·d_out]. Sums as in gemm(). Throws ContractError on shapes that do not fit.
Variable head_linear(Tape& tape, const Variable& x, const Variable& weight, std::int64_t n_heads);

}  // namespace furlong::ops
