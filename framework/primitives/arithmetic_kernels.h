#pragma once
// Kernels of sums, copies and scaling. Rows are contiguous, except for count_non_finite; outer strides are arbitrary.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Squares are summed separately in blocks of this many elements.
inline constexpr std::int64_t sum_of_squares_block = 1 << 12;

/// See fill() in arithmetic.h; likewise the others.
void fill_cpu(const Tensor& tensor, double value);
void add_cpu(const Tensor& target, const Tensor& source, bool accumulate, double scale);
std::int64_t count_non_finite_cpu(const Tensor& tensor);
void sum_of_squares_cpu(const Tensor& tensor, const Tensor& result);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*tensor*/, double /*value*/> fill_gpu{"fill"};
inline GpuKernel<const Tensor& /*target*/, const Tensor& /*source*/, bool /*accumulate*/, double /*scale*/> add_gpu{
    "add"};
/// counts float64 [blocks]: each block writes its count; the result is their sum.
inline GpuKernel<const Tensor& /*tensor*/, const Tensor& /*counts*/> count_non_finite_gpu{"count_non_finite"};
inline GpuKernel<const Tensor& /*tensor*/, const Tensor& /*result*/> sum_of_squares_gpu{"sum_of_squares"};

}  // namespace furlong::ops
