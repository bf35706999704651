#pragma once
#include <optional>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Options of cross_entropy().
struct CrossEntropyOptions {
  /// Divisor of the sum of the rows' losses; by default the number of targets that count. Set it if a step spans
  /// several batches or ranks, so that each target has the same weight.
  std::optional<double> normalizer = std::nullopt;
  /// The divisor in device memory, float64 [1], read when the op runs. Overrides `normalizer`.
  Tensor device_normalizer = {};
  bool count_correct = false;    ///< count the rows whose largest logit (the first one, if tied) is the target's
  bool keep_row_losses = false;  ///< return each row's loss
};

/// The result of cross_entropy().
struct CrossEntropyResult {
  Variable loss;      ///< scalar, float32 (float64 for float64); 0 if no target counts
  Tensor counts;      ///< int32 [2]: targets that count; correct predictions among them (0 unless requested)
  Tensor row_losses;  ///< [rows], the loss's dtype, 0 for ignored rows; undefined unless requested
};

/// Computes the classifier and its loss together: the mean over rows of -log softmax(hidden · weightᵀ + bias)[target].
///   hidden   [..., d], contiguous
///   weight   [vocabulary, d] of the same dtype (may be the embedding table)
///   bias     [vocabulary] or null
///   targets  int32, one for each row of hidden, in any shape with contiguous rows; -1 ignores the row
/// Logits are computed for a chunk of rows at a time, in float32 (float64 for float64): about 8 MiB, on CUDA up to 1
/// GiB. On the CPU rows that do not count are left out if that saves work (CountedRows). If gradients are needed, they
/// are computed chunk by chunk in the same pass and saved as d_hidden and d_weight; backward only scales them. Throws
/// ContractError for targets outside [-1, vocabulary). A GPU does not report such a target; the loss and the gradients
/// are NaN instead.
CrossEntropyResult cross_entropy(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                                 const Tensor& targets, const CrossEntropyOptions& options = {});

}  // namespace furlong::ops
