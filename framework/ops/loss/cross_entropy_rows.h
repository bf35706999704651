#pragma once
// Kernels of cross_entropy() from the logits of a chunk of rows to their losses and gradients; matrix products compute
// the logits before and the other gradients after. Losses of a classifier share them. The host reads nothing back
// between chunks.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// A chunk of `count` rows from `first_row` on, of `rows` rows in all. Logits and d_logits [count, vocabulary] are
/// contiguous on the CPU; on a GPU they have any row stride.
struct CrossEntropyRows {
  Tensor logits;              // float32 or float64; used as scratch if gradients are needed
  Tensor targets;             // int32 [rows]; -1 ignores a row
  std::int64_t first_row;     // index of the chunk's first row in targets, row_losses and correct
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], the chunk's part overwritten: -log softmax(logits)[target], 0 for ignored rows
  // int32 [rows], the chunk's part overwritten: 1 if the target has the largest logit, otherwise 0. Undefined if not
  // requested.
  Tensor correct;
  // [count, vocabulary], overwritten: (softmax - one-hot) * inverse_normalizer. May be the memory of `logits`.
  // Undefined if not needed.
  Tensor d_logits;
};

/// Overwrites counts, int32 [2], with {number of targets that are not -1, 0}, and inverse_normalizer [1] with
/// 1 / normalizer, or 1 / counts[0] if normalizer is 0, or 0 if both are 0. `given`, float64 [1], replaces `normalizer`
/// if defined.
void count_targets_cpu(const Tensor& targets, std::int64_t vocabulary, double normalizer, const Tensor& given,
                       const Tensor& counts, const Tensor& inverse_normalizer);
/// Overwrites the chunk's part of row_losses and, if defined, of correct, and d_logits.
void cross_entropy_rows_cpu(const CrossEntropyRows& rows);
/// Overwrites the scalar `loss` with inverse_normalizer times the sum of row_losses [rows], summed in order in double.
/// Overwrites counts[1] with the sum of `correct`, int32 [rows], if defined.
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
