#pragma once
#include <optional>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

struct CrossEntropyOptions {
  /// What the sum of the rows' losses is divided by; by default the number of targets that count. Give one where a step
  /// spans several batches or ranks, so that each target weighs the same.
  std::optional<double> normalizer = std::nullopt;
  Tensor device_normalizer =
      {};  ///< the same from the device's memory, float64 [1], read when the op runs; goes before `normalizer`
  bool count_correct = false;    ///< count the rows whose largest logit (the first of equals) is the target's
  bool keep_row_losses = false;  ///< return each row's loss
};

struct CrossEntropyResult {
  Variable loss;      ///< scalar, float32 (float64 for float64); 0 when no target counts
  Tensor counts;      ///< int32 [2]: targets that count; correct predictions among them (0 unless asked for)
  Tensor row_losses;  ///< [rows], the loss's dtype, 0 for rows left out; undefined unless asked for
};

/// The classifier and its loss in one: mean over the rows of -log softmax(hidden · weightᵀ + bias)[target].
/// hidden [..., d] (contiguous), weight [vocabulary, d] of the same dtype (may be the embedding's table), bias
/// [vocabulary] or null, targets int32, one for each row of hidden in any shape with contiguous rows; -1 leaves a row
/// out. Logits exist for a chunk of rows at a time, in float32 (float64 for float64), about 8 MiB of them (on CUDA 128
/// MiB); when gradients are wanted they are made in the same pass, chunk by chunk, and kept as d_hidden and d_weight,
/// so backward only scales them. Throws ContractError for targets outside [-1, vocabulary); on a GPU, whose work the
/// host does not wait for, such a target makes the loss and the gradients NaN instead.
CrossEntropyResult cross_entropy(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                                 const Tensor& targets, const CrossEntropyOptions& options = {});

}  // namespace furlong::ops
