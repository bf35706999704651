#pragma once
#include "framework/core/random.h"
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Writes dropout of `source` to `target`, for forward (x to y) and backward (d_y to d_x). Element i, in row-major
/// order, is scale * source[i] if random_word(key, first_index + i) >= threshold, otherwise 0. For dropout rate p,
/// threshold = round(p 2^32), at most 2^32 - 1, and scale = 1 / (1 - p). Both tensors have the same shape and dtype,
/// and contiguous rows.
///   accumulate   true: adds the result to `target`; false: overwrites `target`
///   device_step  float64 [1] on the tensors' device: replaces key.step, read when the kernel runs. Undefined: key.step
///                is used
void dropout_cpu(const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold, double scale,
                 const RandomKey& key, std::uint64_t first_index, const Tensor& device_step);

/// CUDA kernel with the same arguments and results. It does not wait: it is launched on the stream.
inline GpuKernel<const Tensor& /*source*/, const Tensor& /*target*/, bool /*accumulate*/, std::uint32_t /*threshold*/,
                 double /*scale*/, const RandomKey&, std::uint64_t /*first_index*/, const Tensor& /*device_step*/>
    dropout_gpu{"dropout"};

}  // namespace furlong::ops
