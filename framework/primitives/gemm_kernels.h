#pragma once
// Kernels of matrix products and column sums. Callers have checked shapes and dtypes. Rows are contiguous; row strides
// are arbitrary.
#include "framework/core/tensor.h"
#include "framework/primitives/gemm.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// c [m, n] = op(a) · op(b), or += if `accumulate`, with the epilogue; see gemm() in gemm.h. op(a) is [m, k], op(b)
/// [k, n].
void gemm_cpu(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
              const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);
/// The same product of bfloat16 operands, computed in float32. The bits of an element of c depend on its row of op(a),
/// its column of op(b) and its earlier value alone.
void gemm_in_float32_tiles(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                           bool accumulate, const GemmEpilogue& epilogue);
/// Overwrites target [n] with the sum over the rows of matrix [rows, n], or adds it if `accumulate`.
void column_sum_cpu(const Tensor& matrix, const Tensor& target, bool accumulate);

/// gemm() with a composite epilogue (GemmEpilogue::is_composite), as separate products, activations and column sums.
/// For devices without a fused product.
void gemm_in_steps(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                   const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);

/// Returns a tensor of shape [..., n] as a matrix [rows, n] of the same memory. A matrix is returned unchanged, with
/// any strides.
inline Tensor as_matrix(const Tensor& tensor) {
  return tensor.shape().rank() == 2 ? tensor : tensor.reshape({tensor.shape().rows(), tensor.extent(-1)});
}

/// The product through a library (gemm_library.h): cuBLASLt on CUDA. The simulator, whose memory is the host's, uses
/// the CPU kernel.
inline GpuKernel<const Tensor& /*a*/, bool /*transpose_a*/, const Tensor& /*b*/, bool /*transpose_b*/,
                 const Tensor& /*c*/, bool /*accumulate*/, const GemmEpilogue&>
    gemm_gpu{"gemm"};

/// The product by a plain tiled kernel. CUDA uses it if cuBLASLt has no algorithm, and for empty sums.
inline GpuKernel<const Tensor& /*a*/, bool /*transpose_a*/, const Tensor& /*b*/, bool /*transpose_b*/,
                 const Tensor& /*c*/, bool /*accumulate*/, const GemmEpilogue&>
    gemm_tiled_gpu{"gemm"};

/// Overwrites c [m, n] with activation(product + bias), for epilogues that cuBLASLt does not offer. product [m, n] is
/// float32 (float64 for float64) and may be c itself. The bias [n] has c's dtype or the product's.
inline GpuKernel<const Tensor& /*product*/, const Tensor& /*c*/, const GemmEpilogue&> gemm_epilogue_gpu{"gemm"};

/// See column_sum_cpu().
inline GpuKernel<const Tensor& /*matrix*/, const Tensor& /*target*/, bool /*accumulate*/> column_sum_gpu{"column_sum"};

}  // namespace furlong::ops
