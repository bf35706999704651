#pragma once
// The bodies of matrix products and column sums. Shapes and dtypes are checked before; rows are contiguous, row strides
// free.
#include "framework/core/tensor.h"
#include "framework/primitives/gemm.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

void gemm_cpu(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
              const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);
void column_sum_cpu(const Tensor& matrix, const Tensor& target, bool accumulate);

/// A composite epilogue by products, activations and column sums of their own: what every device does that has no
/// product for it.
void gemm_in_steps(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                   const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);

/// [..., n] as a matrix of rows; a matrix stays as it is, whatever its strides.
inline Tensor as_matrix(const Tensor& tensor) {
  return tensor.shape().rank() == 2 ? tensor : tensor.reshape({tensor.shape().rows(), tensor.extent(-1)});
}

/// Through a library (gemm_library.h): cuBLASLt on CUDA, the CPU's body in its place on the simulator, whose memory is
/// the host's.
inline GpuBody<const Tensor& /*a*/, bool /*transpose_a*/, const Tensor& /*b*/, bool /*transpose_b*/,
               const Tensor& /*c*/, bool /*accumulate*/, const GemmEpilogue&>
    gemm_gpu{"gemm"};

/// The same product by a plain tiled kernel: what CUDA falls back on where cuBLASLt has no algorithm (and for empty
/// sums).
inline GpuBody<const Tensor& /*a*/, bool /*transpose_a*/, const Tensor& /*b*/, bool /*transpose_b*/,
               const Tensor& /*c*/, bool /*accumulate*/, const GemmEpilogue&>
    gemm_tiled_gpu{"gemm"};

/// c = activation(product + bias), where cuBLASLt's own epilogue is not what is asked for. The product is in float32
/// (float64 for float64) and may be c itself; the bias has c's dtype or the product's.
inline GpuBody<const Tensor& /*product*/, const Tensor& /*c*/, const GemmEpilogue&> gemm_epilogue_gpu{"gemm"};

inline GpuBody<const Tensor& /*matrix*/, const Tensor& /*target*/, bool /*accumulate*/> column_sum_gpu{"column_sum"};

}  // namespace furlong::ops
