#pragma once
// Arguments of the short_convolution kernels, on any engine.
#include <algorithm>

#include "framework/autodiff/variable.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Transposes weight [channels, width] to by_tap [width, channels] in the accumulation dtype.
void short_convolution_taps_cpu(const Tensor& weight, const Tensor& by_tap);
/// Writes y; see short_convolution(). `positions`: the position of each token in its document, int32 [batch, n], or
/// undefined for one document per row.
void short_convolution_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& history, const Tensor& positions,
                           const Tensor& y);
void short_convolution_history_cpu(const Tensor& x, const Tensor& history, const Tensor& updated_history);
/// Writes the gradient of x as `d_x` says.
void short_convolution_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& positions,
                               const GradientTarget& d_x);
/// `partial` [short_convolution_blocks(), width, channels] is scratch for each block's sum over its rows.
void short_convolution_d_weight_cpu(const Tensor& x, const Tensor& history, const Tensor& positions, const Tensor& d_y,
                                    const Tensor& partial, const GradientTarget& d_weight);

/// Number of blocks of the sum over rows, each of at least 64 rows. It does not depend on the number of threads or
/// multiprocessors.
inline std::int64_t short_convolution_blocks(const Device& device, std::int64_t rows) {
  return std::clamp<std::int64_t>((rows + 63) / 64, 1, device.is_gpu() ? 512 : 64);
}

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor&, const Tensor&> short_convolution_taps_gpu{"short_convolution"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&> short_convolution_gpu{
    "short_convolution"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&> short_convolution_history_gpu{"short_convolution"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, const GradientTarget&> short_convolution_d_x_gpu{
    "short_convolution"};
inline GpuKernel<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const GradientTarget&>
    short_convolution_d_weight_gpu{"short_convolution"};

}  // namespace furlong::ops
