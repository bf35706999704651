#pragma once
// Interface of the kernels of sequence_projection on CPU and GPU. Its linear kind uses matrix products as well.
#include "framework/autodiff/variable.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// target (+)= source, with zeros for masked tokens, whose source is not read. Both [batch, n, channels]; keys
/// [batch, n] or undefined.
void masked_rows_cpu(const Tensor& target, const Tensor& source, const Tensor& keys, bool accumulate);
/// by_tap[j, c] = weight[c mod rows, j]: a weight shared by heads is repeated for each head.
void projection_taps_cpu(const Tensor& weight, const Tensor& by_tap);
/// y [batch, windows, channels]: Σ_j by_tap[j] x_j over each window's kept tokens, or their mean if `by_tap` is
/// undefined.
void pool_windows_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride, const Tensor& y);
void pool_windows_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                          const GradientTarget& d_x);
/// `by_tap_sums` [stride, channels] is scratch.
void pool_windows_d_weight_cpu(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& by_tap_sums,
                               const GradientTarget& d_weight);
/// row_keys [batch, rows] = 1 if a key of the row's window is kept. stride 0: the window of every row is the whole
/// sequence.
void projection_mask_cpu(const Tensor& keys, std::int64_t stride, const Tensor& row_keys);

inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, bool> masked_rows_gpu{"sequence_projection"};
inline GpuKernel<const Tensor&, const Tensor&> projection_taps_gpu{"sequence_projection"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, std::int64_t, const Tensor&> pool_windows_gpu{
    "sequence_projection"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, std::int64_t, const GradientTarget&> pool_windows_d_x_gpu{
    "sequence_projection"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GradientTarget&>
    pool_windows_d_weight_gpu{"sequence_projection"};
inline GpuKernel<const Tensor&, std::int64_t, const Tensor&> projection_mask_gpu{"sequence_projection"};

}  // namespace furlong::ops
