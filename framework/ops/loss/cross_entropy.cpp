#include "framework/ops/loss/classifier_loss.h"

#include <algorithm>

#include "framework/ops/loss/classifier_gradients.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {
namespace {

void check(const char* name, const Variable& hidden, const Variable& weight, const Variable* bias,
           const Tensor& targets, const CrossEntropyOptions& options) {
  require(hidden.shape().rank() >= 1 && hidden.value().is_contiguous() && weight.shape().rank() == 2 &&
              weight.extent(1) == hidden.extent(-1) && weight.value().has_contiguous_rows() &&
              weight.dtype() == hidden.dtype(),
          "{}: hidden is {} {} and weight is {} {}, expected [rows, d] and [outputs, d] of one dtype", name,
          name_of(hidden.dtype()), hidden.shape().text(), name_of(weight.dtype()), weight.shape().text());
  require(!bias || (bias->shape() == Shape{weight.extent(0)} && bias->value().is_contiguous()),
          "{}: bias is {}, expected [{}]", name, bias ? bias->shape().text() : "", weight.extent(0));
  require(
      targets.dtype() == DType::int32 && targets.elements() == hidden.shape().rows() && targets.has_contiguous_rows(),
      "{}: targets are {} {} for hidden {}, expected int32 with one target per row", name, name_of(targets.dtype()),
      targets.shape().text(), hidden.shape().text());
  require(!options.normalizer || *options.normalizer > 0, "{}: normalizer {}, expected a positive number", name,
          options.normalizer.value_or(1));
  const Tensor& given = options.device_normalizer;
  require(!given.defined() || (given.dtype() == DType::float64 && given.elements() == 1),
          "{}: device_normalizer is {} {}, expected float64 [1]", name, name_of(given.dtype()), given.shape().text());
}

}  // namespace

CrossEntropyResult classifier_loss(Tape& tape, const char* name, const Variable& hidden, const Variable& weight,
                                   const Variable* bias, const Tensor& targets, std::int64_t n_targets,
                                   const CrossEntropyOptions& options, bool needs_all_rows,
                                   const std::function<void(const CrossEntropyRows&)>& rows_of_chunk) {
  check(name, hidden, weight, bias, targets, options);
  const Stream& stream = tape.stream();
  const Device& device = tape.device();
  const DType dtype = hidden.dtype(), sum_dtype = accumulate_dtype(dtype);
  const std::int64_t all_rows = hidden.shape().rows(), d = hidden.extent(-1), vocabulary = weight.extent(0);
  const Tensor hidden_rows = hidden.value().reshape({all_rows, d});

  CrossEntropyResult result;
  const auto [counts, inverse_normalizer] =
      count_targets(stream, targets, n_targets, options.normalizer, options.device_normalizer, sum_dtype);
  result.counts = counts;
  const CountedRows counted = needs_all_rows ? CountedRows(all_rows) : CountedRows(targets, d, vocabulary);
  const Tensor counted_targets = counted.targets(targets);
  const std::int64_t rows = counted.count();
  const Tensor row_losses = Tensor::empty({rows}, sum_dtype, device);
  const Tensor correct = options.count_correct ? Tensor::empty({rows}, DType::int32, device) : Tensor{};
  const Tensor bias_values = bias ? in_dtype(stream, bias->value(), sum_dtype) : Tensor{};

  ClassifierGradients gradients(tape, hidden, weight, bias, counted);
  {
    const std::int64_t chunk_rows = logits_chunk_rows(device, rows, vocabulary);
    const Tensor chunk_logits = logits_chunk(device, chunk_rows, vocabulary, sum_dtype);
    // Gradients of the logits overwrite the logits. Products with 16-bit tensors need them in 16 bits, in separate
    // memory.
    Tensor chunk_d_logits;
    if (gradients.any())
      chunk_d_logits = dtype == sum_dtype ? chunk_logits : logits_chunk(device, chunk_rows, vocabulary, dtype);
    for (std::int64_t first_row = 0; first_row < rows; first_row += chunk_rows) {
      const std::int64_t count = std::min(chunk_rows, rows - first_row);
      const Tensor logits = chunk_logits.narrow(0, 0, count);
      const Tensor hidden_chunk = counted.gather(hidden_rows, first_row, count);
      const Tensor d_logits = gradients.any() ? chunk_d_logits.narrow(0, 0, count) : Tensor{};
      gemm(stream, hidden_chunk, false, weight.value(), true, logits, GradientMode::overwrite,
           {.bias = bias ? &bias_values : nullptr});
      rows_of_chunk({logits, counted_targets, first_row, inverse_normalizer, row_losses, correct, d_logits});
      if (gradients.any()) gradients.add_chunk(stream, d_logits, hidden_chunk, weight.value(), first_row);
    }
  }
  const Tensor loss = Tensor::empty(Shape{}, sum_dtype, device);
  dispatch_kernel(stream, sum_rows_cpu, sum_rows_gpu, row_losses, correct, inverse_normalizer, loss, result.counts);
  if (options.keep_row_losses) result.row_losses = counted.all_rows(stream, row_losses, all_rows);
  result.loss = gradients.record(tape, name, hidden, weight, bias, loss);
  return result;
}

CrossEntropyResult cross_entropy(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                                 const Tensor& targets, const CrossEntropyOptions& options) {
  return classifier_loss(tape, "cross_entropy", hidden, weight, bias, targets, weight.extent(0), options, false,
                         [&](const CrossEntropyRows& chunk) {
                           dispatch_kernel(tape.stream(), cross_entropy_rows_cpu, cross_entropy_rows_gpu, chunk);
                         });
}

}  // namespace furlong::ops
