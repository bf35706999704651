#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites positions with the position of each token in its document; see document_positions(). Both tensors are
/// int32 [batch, n], contiguous.
void document_positions_cpu(const Tensor& documents, const Tensor& positions);

/// CUDA kernel with the same arguments and results.
inline GpuKernel<const Tensor& /*documents*/, const Tensor& /*positions*/> document_positions_gpu{"document_positions"};

}  // namespace furlong::ops
