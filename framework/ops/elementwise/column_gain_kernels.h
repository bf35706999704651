#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Writes in · gain, column by column, to `out`, or adds it if `accumulate`. Rows are contiguous; gain [columns] has
/// accumulate_dtype() of `in`.
void column_gain_cpu(const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate);
/// Writes to d_gain [columns] the sum over rows of x · d_y. `blocks` [n_blocks, columns] is scratch: one sum for each
/// of n_blocks equal runs of rows.
void column_gain_d_gain_cpu(const Tensor& x, const Tensor& d_y, const Tensor& blocks, const Tensor& d_gain);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*in*/, const Tensor& /*gain*/, const Tensor& /*out*/, bool /*accumulate*/>
    column_gain_gpu{"column_gain"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*blocks*/, const Tensor& /*d_gain*/>
    column_gain_d_gain_gpu{"column_gain"};

}  // namespace furlong::ops
