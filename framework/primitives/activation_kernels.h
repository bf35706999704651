#pragma once
// Kernels of the point-wise non-linearities. All tensors have one dtype and contiguous rows, with any outer strides.
#include "framework/core/tensor.h"
#include "framework/primitives/activation_kind.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Writes y = f(x), element by element.
void activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
/// Writes d_x = f'(x) d_y, or adds it to d_x if `accumulate`.
void activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                             ActivationKind kind);
/// Writes y [..., f] = f(gate) * up, where gate is the first half of each row of x [..., 2f] and up the second.
void gated_activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
/// Writes the gradients of gate and up to d_x [..., 2f], or adds them if `accumulate`.
void gated_activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                                   ActivationKind kind);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*y*/, ActivationKind> activation_gpu{"activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*d_x*/, bool /*accumulate*/, ActivationKind>
    activation_backward_gpu{"activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*y*/, ActivationKind> gated_activation_gpu{"gated_activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*d_x*/, bool /*accumulate*/, ActivationKind>
    gated_activation_backward_gpu{"gated_activation"};

}  // namespace furlong::ops
