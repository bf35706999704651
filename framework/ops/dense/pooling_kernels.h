#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites output [batch, d] from x [batch, n, d]. If `mean`, with the mean over positions whose mask, int32
/// [batch, n], is not 0 (undefined mask: over all positions). Otherwise with the first position.
void pool_cpu(const Tensor& x, const Tensor& mask, bool mean, const Tensor& output);
/// Gradient of pool_cpu: writes d_x [batch, n, d], or adds to it if `accumulate`.
void pool_backward_cpu(const Tensor& d_output, const Tensor& mask, bool mean, const Tensor& d_x, bool accumulate);
/// Overwrites output [pairs, 4 d] with (u, v, u v, u - v), where u and v are rows 2i and 2i + 1 of x [2 pairs, d].
void pair_features_cpu(const Tensor& x, const Tensor& output);
/// Gradient of pair_features_cpu: writes d_x [2 pairs, d], or adds to it if `accumulate`.
void pair_features_backward_cpu(const Tensor& x, const Tensor& d_output, const Tensor& d_x, bool accumulate);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*mask*/, bool /*mean*/, const Tensor& /*output*/> pool_gpu{"pool"};
inline GpuKernel<const Tensor& /*d_output*/, const Tensor& /*mask*/, bool /*mean*/, const Tensor& /*d_x*/,
                 bool /*accumulate*/>
    pool_backward_gpu{"pool"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*output*/> pair_features_gpu{"pair_features"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_output*/, const Tensor& /*d_x*/, bool /*accumulate*/>
    pair_features_backward_gpu{"pair_features"};

}  // namespace furlong::ops
