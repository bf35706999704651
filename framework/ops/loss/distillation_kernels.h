#pragma once
// Kernels of distillation() (distillation.h) from the logits of a chunk of rows to their losses and gradients. Matrix
// products compute the logits before and the other gradients after. Kernels of cross_entropy count the rows and sum the
// losses (cross_entropy_rows.h).
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// A chunk of `count` rows from `first_row` on, of `rows` rows in all. Floating tensors are all float32 or all float64.
/// Logits and d_logits [count, vocabulary] are contiguous on the CPU; on a GPU they have one common row stride.
struct DistillationRows {
  Tensor student, teacher;    // logits of the chunk; used as scratch if gradients are needed
  Tensor targets;             // int32 [rows]; -1 ignores a row
  std::int64_t first_row;     // index of the chunk's first row in targets and row_losses
  double temperature;         // T
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], the chunk's part overwritten: T² KL(teacher ‖ student), 0 for ignored rows
  // [count, vocabulary], overwritten: T (student's - teacher's probabilities) * inverse_normalizer. May be the memory
  // of `student`. Undefined if not needed.
  Tensor d_logits;
};

/// Overwrites the chunk's part of row_losses and, if defined, d_logits.
void distillation_rows_cpu(const DistillationRows& rows);

/// CUDA kernel. A target outside the vocabulary makes its row's loss and gradients NaN, as in cross_entropy.
inline GpuKernel<const DistillationRows&> distillation_rows_gpu{"distillation"};

}  // namespace furlong::ops
