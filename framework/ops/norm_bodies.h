#pragma once
// What the bodies of norm are called with, on any engine. Undefined tensors are absent operands.
#include "framework/autodiff/variable.h"
#include "framework/ops/norm.h"

namespace furlong::ops {

struct NormForward {
  NormKind kind;
  double epsilon;
  Tensor residual_in, branch, gain, bias;  // gain and bias in the statistics' dtype
  Tensor residual;                         // residual_in + branch; undefined without a branch
  Tensor normed;
  Tensor mean, reciprocal_deviation;  // [rows]; no mean for rmsnorm
};

struct NormBackward {
  NormKind kind;
  Tensor residual, mean, reciprocal_deviation, gain;
  Tensor d_normed;
  Tensor addend;              // added to d_residual: what reached the residual by other ways; may be d_residual itself
  Tensor d_residual;          // undefined when nobody wants it
  Tensor d_gain_bias_blocks;  // [norm_row_blocks(rows), 2, d]: each block's sum over its rows of d_normed * x_hat and of d_normed; or
                              // undefined
  Tensor d_gain, d_bias;      // [d], overwritten: the blocks' sums
};

/// Rows are summed in this many blocks, whatever the number of threads.
inline std::int64_t norm_row_blocks(std::int64_t rows) { return rows < 64 ? rows : 64; }

void norm_forward_cpu(const NormForward& work);
void norm_backward_cpu(const NormBackward& work);

}  // namespace furlong::ops
