#pragma once
// The common part of losses over the outputs of a linear classifier (cross_entropy, element_loss).
#include <functional>

#include "framework/ops/loss/cross_entropy.h"
#include "framework/ops/loss/cross_entropy_rows.h"

namespace furlong::ops {

/// Computes hidden · weightᵀ + bias for a chunk of rows at a time and calls `rows_of_chunk` for each chunk, on the
/// tape's stream. `rows_of_chunk` writes the losses of the chunk and the gradients of its logits. See cross_entropy()
/// for the arguments and the result. Targets are in [-1, n_targets). `name` is that of the op on the tape and in
/// errors. `needs_all_rows`: rows that do not count are computed too, so that a chunk's rows have their own index.
CrossEntropyResult classifier_loss(Tape& tape, const char* name, const Variable& hidden, const Variable& weight,
                                   const Variable* bias, const Tensor& targets, std::int64_t n_targets,
                                   const CrossEntropyOptions& options, bool needs_all_rows,
                                   const std::function<void(const CrossEntropyRows&)>& rows_of_chunk);

}  // namespace furlong::ops
