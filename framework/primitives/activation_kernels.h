#pragma once
// Kernels of the point-wise non-linearities. All tensors have one dtype and contiguous rows, with any outer strides.
#include "framework/core/tensor.h"
#include "framework/primitives/activation_kind.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

void activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
void activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                             ActivationKind kind);
void gated_activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind);
void gated_activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                                   ActivationKind kind);

inline GpuKernel<const Tensor& /*x*/, const Tensor& /*y*/, ActivationKind> activation_gpu{"activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*d_x*/, bool /*accumulate*/, ActivationKind>
    activation_backward_gpu{"activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*y*/, ActivationKind> gated_activation_gpu{"gated_activation"};
inline GpuKernel<const Tensor& /*x*/, const Tensor& /*d_y*/, const Tensor& /*d_x*/, bool /*accumulate*/, ActivationKind>
    gated_activation_backward_gpu{"gated_activation"};

}  // namespace furlong::ops
