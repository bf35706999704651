#pragma once
// Kernels of the activation functions f. All tensors of a call have one dtype, and the same shape unless stated.
// Elements of a row (the last dimension) are contiguous; distances between rows are arbitrary.
#include "framework/core/tensor.h"
#include "framework/primitives/activation_kind.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites y with f(x), element by element.
void activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
/// Overwrites d_x with f'(x) d_y, or adds this if `accumulate`.
void activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                             ActivationKind kind);
/// Overwrites y [..., n] with f(gate) * up, where gate is the first half of each row of x [..., 2n] and up the second.
void gated_activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
/// Overwrites d_x [..., 2n] with the gradients of gate and up, or adds them if `accumulate`. d_y is [..., n].
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
