#pragma once
#include <optional>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Options of distillation().
struct DistillationOptions {
  /// T > 0: both distributions are softmax(logits / T). A high temperature gives the teacher's small logits more
  /// weight.
  double temperature = 1;
  /// Divisor of the sum of the rows' losses; by default the number of rows that count. Set it if a step spans several
  /// batches or ranks, so that each row has the same weight.
  std::optional<double> normalizer = std::nullopt;
  /// The divisor in device memory, float64 [1], read when the op runs. Overrides `normalizer`.
  Tensor device_normalizer = {};
};

/// Returns the distillation loss: the mean over rows of T² KL(softmax(teacher / T) ‖ softmax(student / T)), with
/// student = hidden · weightᵀ + bias and teacher = teacher_hidden · teacher_weightᵀ + teacher_bias. The factor T² keeps
/// the size of the gradients independent of T (Hinton, Vinyals and Dean, "Distilling the knowledge in a neural
/// network", 2015). The loss is a scalar, float32 (float64 for float64), and 0 if no row counts.
///   hidden          [..., d], contiguous
///   weight          [vocabulary, d] of the same dtype
///   bias            [vocabulary] or null
///   teacher_hidden  [..., d'], contiguous, with the same number of rows
///   teacher_weight  [vocabulary, d'], teacher_bias [vocabulary] or null
///   targets         int32, one for each row, in any shape with contiguous rows: -1 ignores the row, any token id
///                   counts it
/// The teacher's dtype may differ, but must have the same accumulation dtype. The teacher receives no gradient. Logits
/// of both are computed for a chunk of rows at a time, as in cross_entropy; gradients are computed in the same pass.
/// Throws ContractError if a shape, a dtype, the temperature or the normalizer is invalid, and for targets outside
/// [-1, vocabulary). A GPU does not report such a target; the loss and the row's gradients are NaN instead.
Variable distillation(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                      const Tensor& teacher_hidden, const Tensor& teacher_weight, const Tensor* teacher_bias,
                      const Tensor& targets, const DistillationOptions& options = {});

}  // namespace furlong::ops
