#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites sums, float64 [2], with {Σ |x - reference|², Σ |reference|²}, and the scalar `loss` with their quotient,
/// or 0 if the second sum is 0. x and reference are [..., d] of one dtype with contiguous rows. mask is int32, one for
/// each row; rows with 0 are ignored. Undefined: all rows count.
void relative_error_cpu(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums,
                        const Tensor& loss);
/// Overwrites d_x [..., d] with d_loss · 2 (x - reference) / sums[1], or adds this if `accumulate`. d_loss is a scalar.
/// The gradient is 0 if sums[1] is 0, and in ignored rows.
void relative_error_backward_cpu(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums,
                                 const Tensor& d_loss, const Tensor& d_x, bool accumulate);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*reference*/, const Tensor& /*mask*/, const Tensor& /*sums*/,
                 const Tensor& /*loss*/>
    relative_error_gpu{"relative_error"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*reference*/, const Tensor& /*mask*/, const Tensor& /*sums*/,
                 const Tensor& /*d_loss*/, const Tensor& /*d_x*/, bool /*accumulate*/>
    relative_error_backward_gpu{"relative_error"};

}  // namespace furlong::ops
