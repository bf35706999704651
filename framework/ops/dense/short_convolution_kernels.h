#pragma once
// Kernels of short_convolution() (short_convolution.h). Shapes of all functions:
//   x, y, d_x, d_y            [batch, n, channels], rows contiguous; y and d_y contiguous
//   by_tap                    [width, channels] in the accumulation dtype: the weight, transposed
//   history, updated_history  [batch, width - 1, channels], oldest first; an undefined history is zeros
//   positions                 int32 [batch, n]: position of each token in its document, which the convolution does not
//                             leave. Undefined: each row is one document
#include <algorithm>

#include "framework/autodiff/variable.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites by_tap with the transpose of weight [channels, width].
void short_convolution_taps_cpu(const Tensor& weight, const Tensor& by_tap);
/// Overwrites y[b, t, c] with Σ_j by_tap[j, c] · x[b, t - (width - 1) + j, c].
void short_convolution_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& history, const Tensor& positions,
                           const Tensor& y);
/// Overwrites updated_history with the last width - 1 inputs of `history` followed by x. It may be `history` itself.
void short_convolution_history_cpu(const Tensor& x, const Tensor& history, const Tensor& updated_history);
/// Overwrites or adds to d_x, as its mode says.
void short_convolution_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& positions,
                               const GradientTarget& d_x);
/// Overwrites or adds to d_weight [channels, width], as its mode says. `partial`
/// [short_convolution_blocks(), width, channels] is scratch in the accumulation dtype: each block's sum over its rows.
void short_convolution_d_weight_cpu(const Tensor& x, const Tensor& history, const Tensor& positions, const Tensor& d_y,
                                    const Tensor& partial, const GradientTarget& d_weight);

/// Returns the number of blocks in which the weight gradient is summed over `rows` = batch · n rows: at most one per 64
/// rows. It does not depend on the number of threads or multiprocessors, so neither do the bits of the sum.
inline std::int64_t short_convolution_blocks(const Device& device, std::int64_t rows) {
  return std::clamp<std::int64_t>((rows + 63) / 64, 1, device.is_gpu() ? 512 : 64);
}

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*weight*/, const Tensor& /*by_tap*/> short_convolution_taps_gpu{"short_convolution"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*by_tap*/, const Tensor& /*history*/, const Tensor& /*positions*/,
                 const Tensor& /*y*/>
    short_convolution_gpu{"short_convolution"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*history*/, const Tensor& /*updated_history*/>
    short_convolution_history_gpu{"short_convolution"};
inline GpuKernel<const Tensor& /*d_y*/, const Tensor& /*by_tap*/, const Tensor& /*positions*/,
                 const GradientTarget& /*d_x*/>
    short_convolution_d_x_gpu{"short_convolution"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*history*/, const Tensor& /*positions*/, const Tensor& /*d_y*/,
                 const Tensor& /*partial*/, const GradientTarget& /*d_weight*/>
    short_convolution_d_weight_gpu{"short_convolution"};

}  // namespace furlong::ops
