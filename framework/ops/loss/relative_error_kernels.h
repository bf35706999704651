#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// x and reference [..., d] of one dtype, rows contiguous; mask int32, one for each row, or undefined. Writes sums
/// (float64 [2]) = {Σ |x - reference|², Σ |reference|²} and loss = their quotient, or 0 if the second sum is 0.
void relative_error_cpu(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums,
                        const Tensor& loss);
/// d_x = (d_x +) d_loss · 2 (x - reference) / sums[1]; 0 if sums[1] is 0, and in ignored rows.
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
