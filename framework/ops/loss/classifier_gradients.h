#pragma once
// What losses that end in a classifier share (cross_entropy, distillation): logits for a chunk of rows at a time, and
// the gradients of the classifier's inputs, made chunk by chunk in the same pass.
#include <optional>
#include <utility>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Rows whose logits are in memory at a time: about 8 MiB of float32, on CUDA 128 MiB, but enough rows to make a
/// product worth its reading of the weights; the chunks are of nearly equal size, so that few shapes of product come
/// up.
std::int64_t logits_chunk_rows(const Device& device, std::int64_t rows, std::int64_t vocabulary);

/// Memory for such a chunk, [rows, vocabulary], contents undefined. On GPUs rows are a multiple of 8 elements apart, so
/// that each begins where vectors may: cuBLASLt has its fast kernels for nothing else, and few vocabularies are such a
/// multiple by themselves (GPT-2's is 50257). What lies between the rows is never read.
Tensor logits_chunk(const Device& device, std::int64_t rows, std::int64_t vocabulary, DType dtype);

/// How many targets count, int32 [2] whose second is 0, and what their losses are multiplied by, `sum_dtype` [1]: the
/// reciprocal of `device_normalizer` where defined, of `normalizer`, or of the count.
std::pair<Tensor, Tensor> count_targets(const Stream& stream, const Tensor& targets, std::int64_t vocabulary,
                                        const std::optional<double>& normalizer, const Tensor& device_normalizer,
                                        DType sum_dtype);

/// `values` in `dtype`, a copy where it is another's: a bias as the epilogue of a product takes it.
Tensor in_dtype(const Stream& stream, const Tensor& values, DType dtype);

/// Gradients of hidden [rows, d], weight [vocabulary, d] and bias for d_loss = 1; undefined where not wanted.
class ClassifierGradients {
 public:
  /// Memory for those that the tape will ask for. `bias` may be null.
  ClassifierGradients(const Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias);

  bool any() const { return d_hidden_.defined() || d_weight_.defined() || d_bias_.defined(); }
  /// Takes the gradients of the logits of the rows from `first_row` on. Chunks come in order, the first row's first.
  void add_chunk(const Stream& stream, const Tensor& d_logits, const Tensor& hidden, const Tensor& weight,
                 std::int64_t first_row) const;
  /// The loss as the tape's, once all chunks have been taken; backward scales the gradients by d_loss.
  Variable record(Tape& tape, const char* name, const Variable& hidden, const Variable& weight, const Variable* bias,
                  const Tensor& loss);

 private:
  Tensor d_hidden_, d_weight_, d_bias_;
};

}  // namespace furlong::ops
