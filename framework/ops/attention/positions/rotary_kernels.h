#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Rotates the first n_heads heads of x [..., n, columns] in place, or back if `inverse`; see rotary().
///   table  [rows, 2, d_head / 2]: cosines (0) and sines (1) of one position per row
///   rows   int32, the row of the table for each token of x. Undefined: token t of all tokens, in row-major order, uses
///          row t mod (number of rows)
void rotary_cpu(const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads, bool inverse);
/// Overwrites table[p, 0, i] and table[p, 1, i] with cosine and sine of the angle (first_position + p) frequencies[i],
/// in radians. frequencies is float64 [d_head / 2] on the table's device.
void rotary_table_cpu(const Tensor& table, const Tensor& frequencies, std::int64_t first_position);
/// Like rotary_table_cpu(), with the angles positions[p] frequencies[i]; positions is int32, one per row of the table.
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
