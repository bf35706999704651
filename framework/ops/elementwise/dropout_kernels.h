#pragma once
#include "framework/core/random.h"
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// target (+)= scale * source where random_word(key, first_index + i) >= threshold, else 0. Both tensors have one dtype
/// and contiguous rows. device_step may be undefined.
void dropout_cpu(const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold, double scale,
                 const RandomKey& key, std::uint64_t first_index, const Tensor& device_step);

inline GpuKernel<const Tensor& /*source*/, const Tensor& /*target*/, bool /*accumulate*/, std::uint32_t /*threshold*/,
                 double /*scale*/, const RandomKey&, std::uint64_t /*first_index*/, const Tensor& /*device_step*/>
    dropout_gpu{"dropout"};

}  // namespace furlong::ops
