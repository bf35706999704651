#pragma once
// The kernels of distillation between its products, by engine. cross_entropy's kernels count the rows and sum the
// losses (cross_entropy_rows.h).
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// One chunk: logits [count, vocabulary] of the rows from `first_row` on, both float32 or both float64. Contiguous on
/// the CPU. On a GPU any row stride, the same for both and for d_logits.
struct DistillationRows {
  Tensor student, teacher;  // overwritten if gradients are needed
  Tensor targets;           // int32, all rows
  std::int64_t first_row;
  double temperature;
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], written: T² KL(teacher ‖ student), 0 for ignored rows
  Tensor agreement;           // int32 [rows], written 0 or 1; undefined if not requested
  // [count, vocabulary], written: T (student's - teacher's probabilities) * inverse_normalizer. May be `student`;
  // undefined if not needed.
  Tensor d_logits;
};

/// Writes the chunk's row_losses and, if defined, agreement and d_logits.
void distillation_rows_cpu(const DistillationRows& rows);

/// CUDA kernel. A target outside the vocabulary makes its row's loss and gradients NaN, as in cross_entropy.
inline GpuKernel<const DistillationRows&> distillation_rows_gpu{"distillation"};

}  // namespace furlong::ops
