#pragma once
// The parts of cross_entropy between its products, by engine. Sizes come from the tensors; nothing is read back to the
// host between chunks.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// One chunk: logits [count, vocabulary] of the rows from `first_row` on; on a GPU any row stride, on the CPU
/// contiguous, d_logits likewise.
struct CrossEntropyRows {
  Tensor logits;   // float32 or float64; overwritten when gradients are wanted
  Tensor targets;  // int32, all rows
  std::int64_t first_row;
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], written
  Tensor correct;             // int32 [rows], written 0 or 1; undefined unless wanted
  Tensor d_logits;  // [count, vocabulary], written: (softmax - one-hot) * inverse_normalizer; may be `logits`;
                    // undefined unless wanted
};

/// counts = {targets that are not -1, 0}; inverse_normalizer = 1 / normalizer, or 1 / counts[0] when that is 0, or 0
/// when both are. `given` (float64 [1], or undefined) takes the place of `normalizer`.
void count_targets_cpu(const Tensor& targets, std::int64_t vocabulary, double normalizer, const Tensor& given,
                       const Tensor& counts, const Tensor& inverse_normalizer);
void cross_entropy_rows_cpu(const CrossEntropyRows& rows);
/// loss = sum of row_losses * inverse_normalizer, summed in order in double; counts[1] = sum of `correct` where
/// defined.
void sum_rows_cpu(const Tensor& row_losses, const Tensor& correct, const Tensor& inverse_normalizer, const Tensor& loss,
                  const Tensor& counts);
/// The one element of a floating tensor.
double scalar_cpu(const Tensor& scalar);

// On a GPU no target is looked at by the host: one outside the vocabulary makes its row's loss and gradients NaN.
inline GpuBody<const Tensor& /*targets*/, double /*normalizer*/, const Tensor& /*given*/, const Tensor& /*counts*/,
               const Tensor& /*inverse_normalizer*/>
    count_targets_gpu{"cross_entropy"};
inline GpuBody<const CrossEntropyRows&> cross_entropy_rows_gpu{"cross_entropy"};
inline GpuBody<const Tensor& /*row_losses*/, const Tensor& /*correct*/, const Tensor& /*inverse_normalizer*/,
               const Tensor& /*loss*/, const Tensor& /*counts*/>
    sum_rows_gpu{"cross_entropy"};
/// tensor *= scalar, in place, with the scalar (float32 or float64, one element) read on the device. Contiguous
/// tensors.
inline GpuBody<const Tensor& /*tensor*/, const Tensor& /*scalar*/> scale_by_scalar_gpu{"cross_entropy"};

}  // namespace furlong::ops
