#pragma once
// Shared by losses that end in a classifier (cross_entropy, distillation): logits for a chunk of rows at a time, and
// the gradients of the classifier's inputs, computed chunk by chunk in the same pass.
#include <optional>
#include <utility>

#include "framework/autodiff/tape.h"
#include "framework/ops/loss/counted_rows.h"

namespace furlong::ops {

/// Returns how many logits a GPU with `memory_bytes` of memory stores at a time: a power of two, at most 2^28. With
/// their 16-bit gradients they take at most 1/42 of the memory.
std::int64_t max_logits_on_gpu(std::int64_t memory_bytes);

/// Returns the number of rows whose logits are in memory at a time: about 8 MiB of float32, on CUDA
/// max_logits_on_gpu(). There are always enough rows to make reading the weights worthwhile. Chunks have nearly equal
/// size, so that products have few different shapes.
std::int64_t logits_chunk_rows(const Device& device, std::int64_t rows, std::int64_t vocabulary);

/// Allocates one chunk, [rows, vocabulary], uninitialized. On GPUs the row stride is a multiple of 8 elements, because
/// cuBLASLt has fast kernels only for aligned rows and few vocabulary sizes are such a multiple (GPT-2's is 50257). The
/// padding between rows is never read.
Tensor logits_chunk(const Device& device, std::int64_t rows, std::int64_t vocabulary, DType dtype);

/// Returns the number of targets that count, int32 [2] with 0 in the second place, and the factor of their losses,
/// `sum_dtype` [1]. The factor is the reciprocal of `device_normalizer` if defined, else of `normalizer` if given, else
/// of the count.
std::pair<Tensor, Tensor> count_targets(const Stream& stream, const Tensor& targets, std::int64_t vocabulary,
                                        const std::optional<double>& normalizer, const Tensor& device_normalizer,
                                        DType sum_dtype);

/// Returns `values` in `dtype`, converted if necessary. For a bias in the dtype that a product's epilogue needs.
Tensor in_dtype(const Stream& stream, const Tensor& values, DType dtype);

/// Gradients of hidden [rows, d], weight [vocabulary, d] and bias for d_loss = 1. Undefined if not needed.
class ClassifierGradients {
 public:
  /// Allocates the gradients that the tape needs. `bias` may be null. The gradient of rows that are not in `rows` is 0.
  ClassifierGradients(const Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                      const CountedRows& rows);

  bool any() const { return d_hidden_.defined() || d_weight_.defined() || d_bias_.defined(); }
  /// Adds the contribution of a chunk of the rows, starting at `first_row` of them. Chunks must come in order, starting
  /// at 0.
  void add_chunk(const Stream& stream, const Tensor& d_logits, const Tensor& hidden, const Tensor& weight,
                 std::int64_t first_row) const;
  /// Records the loss on the tape after all chunks. Backward scales the gradients by d_loss.
  Variable record(Tape& tape, const char* name, const Variable& hidden, const Variable& weight, const Variable* bias,
                  const Tensor& loss);

 private:
  const CountedRows& rows_;
  Tensor d_hidden_, d_weight_, d_bias_;
};

}  // namespace furlong::ops
