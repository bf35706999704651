#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// out[r, c] = in[r, c] · gain[c], or += if `accumulate`. in and out [..., columns] have one shape and contiguous rows;
/// gain [columns] has the accumulation dtype of `in`. Computes y (from x) and d_x (from d_y).
void column_gain_cpu(const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate);
/// Overwrites d_gain [columns] with the sum over rows of x · d_y, both [..., columns] with contiguous rows. `blocks`
/// [n_blocks, columns] is scratch: the rows are divided into n_blocks nearly equal runs, each summed separately. d_gain
/// and blocks have the accumulation dtype of x.
void column_gain_d_gain_cpu(const Tensor& x, const Tensor& d_y, const Tensor& blocks, const Tensor& d_gain);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*in*/, const Tensor& /*gain*/, const Tensor& /*out*/, bool /*accumulate*/>
    column_gain_gpu{"column_gain"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*blocks*/, const Tensor& /*d_gain*/>
    column_gain_d_gain_gpu{"column_gain"};

}  // namespace furlong::ops
