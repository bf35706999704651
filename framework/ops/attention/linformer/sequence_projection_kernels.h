#pragma once
// Kernels of sequence_projection() (sequence_projection.h). The kinds mean and convolution reduce each window of
// `stride` consecutive tokens to one row: windows = ⌈n / stride⌉, and the last window may be shorter. The kind linear
// uses matrix products, and from here only masked_rows and projection_mask.
//
// Shapes: x and d_x [batch, n, channels], y and d_y [batch, windows, channels], channels = n_heads·d. Channels are
// contiguous. keys: int32 [batch, n], 0 masks a token; undefined keeps all tokens.
#include "framework/autodiff/variable.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Copies source to target, or adds it if `accumulate`. Both are [batch, n, channels]. A masked token counts as zero,
/// and its source is not read.
void masked_rows_cpu(const Tensor& target, const Tensor& source, const Tensor& keys, bool accumulate);
/// Transposes the convolution weight [rows, stride] to by_tap [stride, channels] in the accumulation dtype:
/// by_tap[j, c] = weight[c mod rows, j]. rows is d (one weight for all heads, repeated) or channels.
void projection_taps_cpu(const Tensor& weight, const Tensor& by_tap);
/// Overwrites each row of y with Σ_j by_tap[j] ⊙ x_j over the window's kept tokens, where j is the token's place in the
/// window. If `by_tap` is undefined, the row is the mean of these tokens. Without kept tokens the row is zero.
void pool_windows_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride, const Tensor& y);
/// Gradient of pool_windows with respect to x: overwrites or adds to d_x, as its mode says. Masked tokens get zero.
void pool_windows_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                          const GradientTarget& d_x);
/// Gradient of pool_windows with respect to the convolution weight: overwrites or adds to d_weight [rows, stride], as
/// its mode says. `by_tap_sums` [stride, channels] is scratch in the accumulation dtype.
void pool_windows_d_weight_cpu(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& by_tap_sums,
                               const GradientTarget& d_weight);
/// Overwrites row_keys, int32 [batch, rows], with 1 if the row's window contains a kept token, otherwise 0. With stride
/// 0, used for the kind linear, the window of every row is the whole sequence.
void projection_mask_cpu(const Tensor& keys, std::int64_t stride, const Tensor& row_keys);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*target*/, const Tensor& /*source*/, const Tensor& /*keys*/, bool /*accumulate*/>
    masked_rows_gpu{"sequence_projection"};
inline GpuKernel<const Tensor& /*weight*/, const Tensor& /*by_tap*/> projection_taps_gpu{"sequence_projection"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*by_tap*/, const Tensor& /*keys*/, std::int64_t /*stride*/,
                 const Tensor& /*y*/>
    pool_windows_gpu{"sequence_projection"};
inline GpuKernel<const Tensor& /*d_y*/, const Tensor& /*by_tap*/, const Tensor& /*keys*/, std::int64_t /*stride*/,
                 const GradientTarget& /*d_x*/>
    pool_windows_d_x_gpu{"sequence_projection"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*keys*/, const Tensor& /*by_tap_sums*/,
                 const GradientTarget& /*d_weight*/>
    pool_windows_d_weight_gpu{"sequence_projection"};
inline GpuKernel<const Tensor& /*keys*/, std::int64_t /*stride*/, const Tensor& /*row_keys*/> projection_mask_gpu{
    "sequence_projection"};

}  // namespace furlong::ops
