#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// Turns the heads of x [..., n, columns] in place by table [rows, 2, d_head / 2], or back where `inverse` says so.
/// `rows` (int32, or undefined) says which row of the table each token is turned by; undefined: the rows one after
/// another, from the beginning again when they are used up.
void rotary_cpu(const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads, bool inverse);
/// table[p, 0 and 1, i] = cosine and sine of (first_position + p) frequencies[i]; float64 [d_head / 2] on the table's
/// device.
void rotary_table_cpu(const Tensor& table, const Tensor& frequencies, std::int64_t first_position);
/// The same of positions[p] frequencies[i].
void rotary_rows_cpu(const Tensor& table, const Tensor& frequencies, const Tensor& positions);

inline GpuBody<const Tensor& /*x*/, const Tensor& /*table*/, const Tensor& /*rows*/, std::int64_t /*n_heads*/,
               bool /*inverse*/>
    rotary_gpu{"rotary"};
inline GpuBody<const Tensor& /*table*/, const Tensor& /*frequencies*/, std::int64_t /*first_position*/>
    rotary_table_gpu{"rotary"};
inline GpuBody<const Tensor& /*table*/, const Tensor& /*frequencies*/, const Tensor& /*positions*/> rotary_rows_gpu{
    "rotary"};

}  // namespace furlong::ops
