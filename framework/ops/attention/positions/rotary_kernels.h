#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Rotates the heads of x [..., n, columns] in place by table [rows, 2, d_head / 2], or back if `inverse`. `rows`
/// (int32) gives each token's row of the table. If undefined, tokens use the rows in order and start again at row 0
/// after the last one.
void rotary_cpu(const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads, bool inverse);
/// Writes table[p, 0 and 1, i] = cosine and sine of (first_position + p) frequencies[i]. frequencies is float64 [d_head
/// / 2] on the table's device.
void rotary_table_cpu(const Tensor& table, const Tensor& frequencies, std::int64_t first_position);
/// Like rotary_table_cpu(), with the angles positions[p] frequencies[i].
void rotary_rows_cpu(const Tensor& table, const Tensor& frequencies, const Tensor& positions);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*table*/, const Tensor& /*rows*/, std::int64_t /*n_heads*/,
                 bool /*inverse*/>
    rotary_gpu{"rotary"};
inline GpuKernel<const Tensor& /*table*/, const Tensor& /*frequencies*/, std::int64_t /*first_position*/>
    rotary_table_gpu{"rotary"};
inline GpuKernel<const Tensor& /*table*/, const Tensor& /*frequencies*/, const Tensor& /*positions*/> rotary_rows_gpu{
    "rotary"};

}  // namespace furlong::ops
