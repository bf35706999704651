#pragma once
// Arguments of the norm kernels, on any engine. Undefined tensors are absent operands.
#include <algorithm>

#include "framework/autodiff/variable.h"
#include "framework/ops/normalization/norm.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Arguments of the forward kernel. [..., d] tensors are contiguous.
struct NormForward {
  NormKind kind;
  double epsilon;
  Tensor residual_in, branch, gain, bias;  // gain and bias in the dtype of the statistics
  Tensor residual;                         // residual_in + branch; undefined if there is no branch
  Tensor normed;
  Tensor mean, reciprocal_deviation;  // [rows]; no mean for rmsnorm
};

/// Arguments of the backward kernel.
struct NormBackward {
  NormKind kind;
  Tensor residual, mean, reciprocal_deviation, gain;
  Tensor d_normed;
  Tensor addend;      // added to d_residual: the gradient from other uses of the residual; may be d_residual itself
  Tensor d_residual;  // undefined if not needed
  // [norm_row_blocks(), 2, d] or undefined: each block's sums over its rows of d_normed * x_hat and of d_normed.
  Tensor d_gain_bias_blocks;
  Tensor d_gain, d_bias;  // [d], overwritten with the sums over the blocks
};

/// Number of blocks of rows over which gradients of gain and bias are summed. It does not depend on the number of
/// threads or multiprocessors. A GPU needs more blocks than a CPU to be busy; their sums take a few MiB.
inline std::int64_t norm_row_blocks(const Device& device, std::int64_t rows, std::int64_t columns) {
  if (!device.is_gpu()) return std::min<std::int64_t>(rows, 64);
  return std::min((rows + 7) / 8, std::clamp<std::int64_t>((1 << 19) / columns, 256, 4096));
}

/// Writes residual (if defined), normed and the statistics.
void norm_forward_cpu(const NormForward& work);
/// Writes d_residual, d_gain and d_bias, as far as they are defined.
void norm_backward_cpu(const NormBackward& work);
/// CUDA kernels with the same arguments and results.
inline GpuKernel<const NormForward&> norm_forward_gpu{"norm"};
inline GpuKernel<const NormBackward&> norm_backward_gpu{"norm"};

}  // namespace furlong::ops
