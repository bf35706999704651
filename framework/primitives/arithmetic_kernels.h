#pragma once
// Kernels of fill, add, count_non_finite and sum_of_squares (arithmetic.h). Tensors have any shape. Elements of a row
// (the last dimension) are contiguous, except for count_non_finite; distances between rows are arbitrary.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Number of elements in one block of sum_of_squares(): squares are summed within each block, then over blocks.
inline constexpr std::int64_t sum_of_squares_block = 1 << 12;

/// Overwrites all elements with `value`.
void fill_cpu(const Tensor& tensor, double value);
/// target = scale * source, or target += scale * source if `accumulate`. Both have one shape; float dtypes may differ.
void add_cpu(const Tensor& target, const Tensor& source, bool accumulate, double scale);
/// Returns the number of elements that are NaN or infinite. Any strides.
std::int64_t count_non_finite_cpu(const Tensor& tensor);
/// Overwrites result, float64 [1], with the sum of squares. `tensor` is contiguous.
void sum_of_squares_cpu(const Tensor& tensor, const Tensor& result);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*tensor*/, double /*value*/> fill_gpu{"fill"};
inline GpuKernel<const Tensor& /*target*/, const Tensor& /*source*/, bool /*accumulate*/, double /*scale*/> add_gpu{
    "add"};
/// Overwrites counts, float64 [n_blocks], with the count of each thread block; the caller adds them. n_blocks is also
/// the number of thread blocks to launch.
inline GpuKernel<const Tensor& /*tensor*/, const Tensor& /*counts*/> count_non_finite_gpu{"count_non_finite"};
inline GpuKernel<const Tensor& /*tensor*/, const Tensor& /*result*/> sum_of_squares_gpu{"sum_of_squares"};

}  // namespace furlong::ops
