#pragma once
// Kernels of norm() (norm.h): residual addition and layernorm or rmsnorm over rows of d columns. A tensor of shape
// [..., d] is contiguous and has `rows` rows. An undefined tensor means that the operand or result is absent.
#include <algorithm>

#include "framework/autodiff/variable.h"
#include "framework/ops/normalization/norm.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Arguments of the forward kernel. The statistics, gain and bias are in the accumulation dtype: float32, or float64
/// for float64.
struct NormForward {
  NormKind kind;
  double epsilon;
  // Inputs. residual_in and branch [..., d] have one dtype; gain and bias are [d]. Branch and bias may be undefined.
  Tensor residual_in, branch, gain, bias;
  // Outputs, all overwritten. residual [..., d] = residual_in + branch, undefined without a branch.
  Tensor residual;
  Tensor normed;  // [..., d] = x̂ · gain + bias, with x̂ = (residual - mean) · reciprocal_deviation
  Tensor mean, reciprocal_deviation;  // [rows]; rmsnorm has no mean: it is undefined and counts as 0
};

/// Arguments of the backward kernel.
struct NormBackward {
  NormKind kind;
  Tensor residual, mean, reciprocal_deviation, gain;  // as in NormForward; residual is residual_in without a branch
  Tensor d_normed;                                    // [..., d], in residual's dtype
  // [..., d] or undefined: gradient of the residual through its other uses. May be the same memory as d_residual.
  Tensor addend;
  // [..., d], overwritten with (addend +) the gradient through the norm; undefined if not needed.
  Tensor d_residual;
  // Scratch [norm_row_blocks(), 2, d] for d_gain and d_bias: per block of rows the sums of d_normed · x̂ and of
  // d_normed. Undefined if neither gradient is needed.
  Tensor d_gain_bias_blocks;
  Tensor d_gain, d_bias;  // [d] in the accumulation dtype, overwritten; undefined together with the scratch
};

/// Returns the number of blocks of rows in which the gradients of gain and bias are summed: first within each block,
/// then over blocks. It depends only on the kind of device and the shape, so the bits of the sums do not depend on the
/// number of threads or multiprocessors. A GPU uses more blocks than a CPU; their sums take a few MiB.
inline std::int64_t norm_row_blocks(const Device& device, std::int64_t rows, std::int64_t columns) {
  if (!device.is_gpu()) return std::min<std::int64_t>(rows, 64);
  return std::min((rows + 7) / 8, std::clamp<std::int64_t>((1 << 19) / columns, 256, 4096));
}

/// Overwrites residual (if defined), normed, mean (if defined) and reciprocal_deviation.
void norm_forward_cpu(const NormForward& work);
/// Overwrites d_residual, and d_gain and d_bias, if they are defined.
void norm_backward_cpu(const NormBackward& work);
/// CUDA kernels with the same arguments and results.
inline GpuKernel<const NormForward&> norm_forward_gpu{"norm"};
inline GpuKernel<const NormBackward&> norm_backward_gpu{"norm"};

}  // namespace furlong::ops
