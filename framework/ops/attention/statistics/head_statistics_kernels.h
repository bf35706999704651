#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Adds sums over tokens to `statistics`; see add_head_statistics().
///   query       [batch, n, n_heads, d], the last dimension contiguous
///   key         [batch, n, n_kv_heads, d], likewise
///   kept        int32 [batch, n], 0 leaves a token out; undefined: all tokens count
///   partial     scratch [n_heads + n_kv_heads, 2 d] in the accumulation dtype: sums over up to 64 tokens
///   total       scratch of the same shape in float64: sums over all tokens
///   statistics  [n_heads, 1 + 4 d], float32 or float64, accumulated
void add_head_statistics_cpu(const Tensor& query, const Tensor& key, const Tensor& kept, const Tensor& partial,
                             const Tensor& total, const Tensor& statistics);

/// CUDA kernel with the same results; it needs no scratch.
inline GpuKernel<const Tensor& /*query*/, const Tensor& /*key*/, const Tensor& /*kept*/, const Tensor& /*statistics*/>
    add_head_statistics_gpu{"head_statistics"};

}  // namespace furlong::ops
