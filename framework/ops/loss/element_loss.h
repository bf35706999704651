#pragma once
#include <cstdint>

#include "framework/ops/loss/cross_entropy.h"

namespace furlong::ops {

/// The loss of one output x with value t. squared_error: (x - t)². binary_cross_entropy, for a t of 0 to 1:
/// -t log σ(x) - (1 - t) log(1 - σ(x)).
enum class ElementLoss : std::uint8_t { squared_error, binary_cross_entropy };

/// Computes a linear layer and its loss together: the mean over rows of the mean over outputs of the loss of
/// hidden · weightᵀ + bias against `values`.
///   hidden   [..., d], contiguous
///   weight   [outputs, d] of the same dtype
///   bias     [outputs] or null
///   targets  int32, one for each row of hidden: 0 if the row counts, -1 if it is ignored
///   values   [rows, outputs], contiguous: float32, stored as their bits in int32, because the input of a step is
///            copied to the device as one buffer of 32-bit integers
/// The result and the options are those of cross_entropy(). With binary_cross_entropy a row is correct if, for every
/// output, logit > 0 exactly when value > 0.5. With squared_error no row counts as correct. Throws ContractError if a
/// shape or a dtype does not match.
CrossEntropyResult element_loss(Tape& tape, ElementLoss kind, const Variable& hidden, const Variable& weight,
                                const Variable* bias, const Tensor& targets, const Tensor& values,
                                const CrossEntropyOptions& options = {});

}  // namespace furlong::ops
