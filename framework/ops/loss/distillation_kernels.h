#pragma once
// The part of distillation between its products, by engine. The rows that count are counted and the losses summed by
// cross_entropy's bodies (cross_entropy_rows.h).
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// One chunk: logits [count, vocabulary] of the rows from `first_row` on, both float32 or both float64; on the CPU
/// contiguous, on a GPU with rows any number of elements apart, the same in both and in d_logits.
struct DistillationRows {
  Tensor student, teacher;  // overwritten when gradients are wanted
  Tensor targets;           // int32, all rows
  std::int64_t first_row;
  double temperature;
  Tensor inverse_normalizer;  // [1]
  Tensor row_losses;          // [rows], written: T² KL(teacher ‖ student), 0 for rows left out
  Tensor agreement;           // int32 [rows], written 0 or 1; undefined unless wanted
  Tensor d_logits;  // [count, vocabulary], written: T (student's - teacher's probabilities) * inverse_normalizer; may
                    // be `student`; undefined unless wanted
};

void distillation_rows_cpu(const DistillationRows& rows);

/// A target outside the vocabulary makes its row's loss and gradients NaN, as in cross_entropy.
inline GpuBody<const DistillationRows&> distillation_rows_gpu{"distillation"};

}  // namespace furlong::ops
