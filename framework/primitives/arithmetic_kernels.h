#pragma once
// The bodies of sums, copies and scalings. Outer strides are free, rows contiguous but for count_non_finite.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// Squares are summed in blocks of so many elements, each for itself.
inline constexpr std::int64_t sum_of_squares_block = 1 << 12;

void fill_cpu(const Tensor& tensor, double value);
void add_cpu(const Tensor& target, const Tensor& source, bool accumulate, double scale);
std::int64_t count_non_finite_cpu(const Tensor& tensor);
void sum_of_squares_cpu(const Tensor& tensor, const Tensor& result);

inline GpuBody<const Tensor& /*tensor*/, double /*value*/> fill_gpu{"fill"};
inline GpuBody<const Tensor& /*target*/, const Tensor& /*source*/, bool /*accumulate*/, double /*scale*/> add_gpu{
    "add"};
/// counts float64 [blocks]: each is given the number of some of the elements, their sum is the answer.
inline GpuBody<const Tensor& /*tensor*/, const Tensor& /*counts*/> count_non_finite_gpu{"count_non_finite"};
inline GpuBody<const Tensor& /*tensor*/, const Tensor& /*result*/> sum_of_squares_gpu{"sum_of_squares"};

}  // namespace furlong::ops
