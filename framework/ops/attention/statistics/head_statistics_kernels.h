#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// query [batch, n, heads, d] and key [batch, n, kv_heads, d], the last dimension contiguous. Scratch of the CPU
/// kernel: `partial` [heads + kv_heads, 2 d] in the accumulate dtype, and `total` of the same shape in float64.
void add_head_statistics_cpu(const Tensor& query, const Tensor& key, const Tensor& kept, const Tensor& partial,
                             const Tensor& total, const Tensor& statistics);

inline GpuKernel<const Tensor& /*query*/, const Tensor& /*key*/, const Tensor& /*kept*/, const Tensor& /*statistics*/>
    add_head_statistics_gpu{"head_statistics"};

}  // namespace furlong::ops
