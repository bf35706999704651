#pragma once
#include <optional>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

struct DistillationOptions {
  double temperature = 1;  ///< T > 0: both distributions are those of logits / T; a high one shows the student the
                           ///< teacher's small logits
  /// What the sum of the rows' losses is divided by; by default the number of rows that count. Give one where a step
  /// spans several batches or ranks, so that each row weighs the same.
  std::optional<double> normalizer = std::nullopt;
  Tensor device_normalizer =
      {};  ///< the same from the device's memory, float64 [1], read when the op runs; goes before `normalizer`
  bool count_agreement =
      false;  ///< count the rows in which teacher and student have the same largest logit (the first of equals)
};

struct DistillationResult {
  Variable loss;  ///< scalar, float32 (float64 for float64); 0 when no row counts
  Tensor counts;  ///< int32 [2]: rows that count; those among them whose largest logits agree (0 unless asked for)
};

/// The student's distance from its teacher's predictions: mean over the rows of T² KL(softmax(teacher / T) ‖
/// softmax(student / T)), with student = hidden · weightᵀ + bias and teacher = teacher_hidden · teacher_weightᵀ +
/// teacher_bias (Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015; T² keeps the
/// gradients' size whatever T). hidden [..., d] (contiguous), weight [vocabulary, d] of the same dtype, bias
/// [vocabulary] or null; teacher_hidden [..., d'] (contiguous, as many rows), teacher_weight [vocabulary, d'] and
/// teacher_bias of a dtype of their own with the same accumulation type; no gradient goes to them. targets int32, one
/// for each row in any shape with contiguous rows: -1 leaves a row out, a token keeps it. Both sides' logits exist for
/// a chunk of rows at a time, as in cross_entropy; gradients are made in the same pass. Throws ContractError for
/// shapes, dtypes, a temperature or a normalizer that do not fit, and for targets outside [-1, vocabulary); on a GPU
/// such a target makes the loss and the row's gradients NaN instead.
DistillationResult distillation(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                                const Tensor& teacher_hidden, const Tensor& teacher_weight, const Tensor* teacher_bias,
                                const Tensor& targets, const DistillationOptions& options = {});

}  // namespace furlong::ops
