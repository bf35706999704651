#pragma once
// The kernels of cross_entropy between its products, by engine. Sizes come from the tensors; the host reads nothing
// back between chunks.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// One chunk: logits [count, vocabulary] of the rows from `first_row` on. On the CPU logits and d_logits are
/// contiguous; on a GPU they have any row stride.
struct CrossEntropyRows {
  Tensor logits;   // float32 or float64; overwritten if gradients are needed
  Tensor targets;  // int32, all rows
  std::int64_t first_row;
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], written
  Tensor correct;             // int32 [rows], written 0 or 1; undefined if not requested
  // [count, vocabulary], written: (softmax - one-hot) * inverse_normalizer. May be `logits`; undefined if not needed.
  Tensor d_logits;
};

/// Writes counts = {targets that are not -1, 0}. inverse_normalizer = 1 / normalizer, or 1 / counts[0] if normalizer is
/// 0, or 0 if both are 0. `given` (float64 [1]), if defined, replaces `normalizer`.
void count_targets_cpu(const Tensor& targets, std::int64_t vocabulary, double normalizer, const Tensor& given,
                       const Tensor& counts, const Tensor& inverse_normalizer);
/// Writes the chunk's row_losses and, if defined, correct and d_logits.
void cross_entropy_rows_cpu(const CrossEntropyRows& rows);
/// Writes loss = sum of row_losses * inverse_normalizer, summed in order in double; counts[1] = sum of `correct` if
/// defined.
void sum_rows_cpu(const Tensor& row_losses, const Tensor& correct, const Tensor& inverse_normalizer, const Tensor& loss,
                  const Tensor& counts);
/// Returns the only element of a floating-point tensor.
double scalar_cpu(const Tensor& scalar);

// CUDA kernels with the same arguments and results. The GPU does not report invalid targets: a target outside the
// vocabulary makes its row's loss and gradients NaN.
inline GpuKernel<const Tensor& /*targets*/, double /*normalizer*/, const Tensor& /*given*/, const Tensor& /*counts*/,
                 const Tensor& /*inverse_normalizer*/>
    count_targets_gpu{"cross_entropy"};
inline GpuKernel<const CrossEntropyRows&> cross_entropy_rows_gpu{"cross_entropy"};
inline GpuKernel<const Tensor& /*row_losses*/, const Tensor& /*correct*/, const Tensor& /*inverse_normalizer*/,
                 const Tensor& /*loss*/, const Tensor& /*counts*/>
    sum_rows_gpu{"cross_entropy"};
/// Multiplies tensor by scalar, in place. The scalar (float32 or float64, one element) is read on the device. The
/// tensor is contiguous.
inline GpuKernel<const Tensor& /*tensor*/, const Tensor& /*scalar*/> scale_by_scalar_gpu{"cross_entropy"};

}  // namespace furlong::ops
