#pragma once
// What the bodies of norm are called with, on any engine. Undefined tensors are absent operands.
#include <algorithm>

#include "framework/autodiff/variable.h"
#include "framework/ops/normalization/norm.h"
#include "framework/primitives/gpu_body.h"

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
  Tensor d_gain_bias_blocks;  // [norm_row_blocks(), 2, d]: each block's sum over its rows of d_normed * x_hat and of
                              // d_normed; or undefined
  Tensor d_gain, d_bias;      // [d], overwritten: the blocks' sums
};

/// Gradients of gain and bias are summed over this many blocks of rows, whatever the number of threads or of
/// multiprocessors. A GPU needs more of them at work than a CPU, so many that their sums come to a few MiB.
inline std::int64_t norm_row_blocks(const Device& device, std::int64_t rows, std::int64_t columns) {
  if (!device.is_gpu()) return std::min<std::int64_t>(rows, 64);
  return std::min((rows + 7) / 8, std::clamp<std::int64_t>((1 << 19) / columns, 256, 4096));
}

void norm_forward_cpu(const NormForward& work);
void norm_backward_cpu(const NormBackward& work);
inline GpuBody<const NormForward&> norm_forward_gpu{"norm"};
inline GpuBody<const NormBackward&> norm_backward_gpu{"norm"};

}  // namespace furlong::ops
