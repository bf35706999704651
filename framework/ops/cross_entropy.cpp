#include "framework/ops/cross_entropy.h"

#include <algorithm>

#include "framework/ops/arithmetic.h"
#include "framework/ops/cross_entropy_rows.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/gemm.h"

namespace furlong::ops {

namespace {

/// Rows whose logits are in memory at a time: about 8 MiB of float32, on CUDA 128 MiB, but enough rows to make a product worth its reading
/// of the weights; the chunks are of nearly equal size, so that few shapes of product come up.
std::int64_t chunk_rows_for(const Device& device, std::int64_t rows, std::int64_t vocabulary) {
  const bool many = device.type == DeviceType::cuda;
  const std::int64_t chunk_elements = many ? 1 << 25 : 1 << 21, least_rows = many ? 512 : 64;
  const std::int64_t most = std::max(least_rows, chunk_elements / vocabulary);
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return std::max<std::int64_t>(1, (rows + chunks - 1) / chunks);
}

/// Gradients for d_loss = 1, gathered chunk by chunk; undefined where not wanted.
struct Gradients {
  Tensor d_hidden, d_weight, d_bias;
  bool any() const { return d_hidden.defined() || d_weight.defined() || d_bias.defined(); }

  void add_chunk(const Stream& stream, const Tensor& d_logits, const Tensor& hidden, const Tensor& weight, std::int64_t first_row) const {
    const GradientMode mode = first_row == 0 ? GradientMode::overwrite : GradientMode::accumulate;
    if (d_hidden.defined())
      gemm(stream, d_logits, false, weight, false, d_hidden.narrow(0, first_row, hidden.extent(0)), GradientMode::overwrite);
    if (d_weight.defined()) gemm(stream, d_logits, true, hidden, false, d_weight, mode);
    if (d_bias.defined()) column_sum(stream, d_logits, {d_bias, mode});
  }
};

void backward(BackwardContext& context, std::size_t inputs) {
  const Tensor d_loss = context.d_output();
  const Device& device = context.stream().device;
  const double scale = device.is_cpu() ? scalar_cpu(d_loss) : 1.0;
  // On a GPU d_loss stays where it is. Scaled where they lie: nobody else holds the gradients, and d_hidden goes on as the gradient itself.
  for (std::size_t i = 0; i < inputs && device.is_gpu(); ++i) {
    if (context.wants(i)) scale_by_scalar_gpu(context.stream(), context.saved(i), d_loss);
  }
  if (context.wants(0)) {
    if (scale != 1.0) add(context.stream(), context.saved(0), context.saved(0), GradientMode::overwrite, scale);
    context.pass(0, context.saved(0));
  }
  for (std::size_t i = 1; i < inputs; ++i) {
    const GradientTarget target = context.d_input(i);
    if (target.wanted()) add(context.stream(), target.tensor, context.saved(i), target.mode, scale);
  }
}

void check(const Variable& hidden, const Variable& weight, const Variable* bias, const Tensor& targets,
           const CrossEntropyOptions& options) {
  require(hidden.shape().rank() >= 1 && hidden.value().is_contiguous() && weight.shape().rank() == 2 &&
              weight.extent(1) == hidden.extent(-1) && weight.value().has_contiguous_rows() && weight.dtype() == hidden.dtype(),
          "cross_entropy: hidden {} {} with weight {} {}, expected [rows, d] and [vocabulary, d]", name_of(hidden.dtype()),
          hidden.shape().text(), name_of(weight.dtype()), weight.shape().text());
  require(!bias || (bias->shape() == Shape{weight.extent(0)} && bias->value().is_contiguous()), "cross_entropy: bias is {}, expected [{}]",
          bias ? bias->shape().text() : "", weight.extent(0));
  require(targets.dtype() == DType::int32 && targets.elements() == hidden.shape().rows() && targets.has_contiguous_rows(),
          "cross_entropy: targets are {} {} for hidden {}, expected one int32 for each row", name_of(targets.dtype()),
          targets.shape().text(), hidden.shape().text());
  require(!options.normalizer || *options.normalizer > 0, "cross_entropy: normalizer {}, expected a positive number",
          options.normalizer.value_or(1));
  const Tensor& given = options.device_normalizer;
  require(!given.defined() || (given.dtype() == DType::float64 && given.elements() == 1), "cross_entropy: device_normalizer is {} {}",
          name_of(given.dtype()), given.shape().text());
}

}  // namespace

CrossEntropyResult cross_entropy(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias, const Tensor& targets,
                                 const CrossEntropyOptions& options) {
  check(hidden, weight, bias, targets, options);
  const Stream& stream = tape.stream();
  const Device& device = tape.device();
  const DType dtype = hidden.dtype(), sum_dtype = accumulate_dtype(dtype);
  const std::int64_t rows = hidden.shape().rows(), d = hidden.extent(-1), vocabulary = weight.extent(0);
  const Tensor hidden_rows = hidden.value().reshape({rows, d});

  CrossEntropyResult result;
  result.counts = Tensor::empty({2}, DType::int32, device);
  const Tensor inverse_normalizer = Tensor::empty({1}, sum_dtype, device);
  const double normalizer = options.normalizer.value_or(0);
  if (device.is_cpu()) count_targets_cpu(targets, vocabulary, normalizer, options.device_normalizer, result.counts, inverse_normalizer);
  if (device.is_gpu()) count_targets_gpu(stream, targets, normalizer, options.device_normalizer, result.counts, inverse_normalizer);
  const Tensor row_losses = Tensor::empty({rows}, sum_dtype, device);
  const Tensor correct = options.count_correct ? Tensor::empty({rows}, DType::int32, device) : Tensor{};
  Tensor bias_values = bias ? bias->value() : Tensor{};
  if (bias && bias->dtype() != sum_dtype) {
    bias_values = Tensor::empty(bias->shape(), sum_dtype, device);
    convert(stream, bias_values, bias->value());
  }

  Gradients gradients;
  if (tape.records({&hidden})) gradients.d_hidden = Tensor::empty({rows, d}, dtype, device);
  if (tape.records({&weight})) gradients.d_weight = Tensor::empty(weight.shape(), sum_dtype, device);
  if (bias && tape.records({bias})) gradients.d_bias = Tensor::empty(bias->shape(), sum_dtype, device);
  {
    const std::int64_t chunk_rows = chunk_rows_for(device, rows, vocabulary);
    const Tensor chunk_logits = Tensor::empty({chunk_rows, vocabulary}, sum_dtype, device);
    // Gradients of the logits take the logits' place; as factors of products with 16-bit tensors they need 16 bits too, and memory of their
    // own.
    Tensor chunk_d_logits;
    if (gradients.any()) chunk_d_logits = dtype == sum_dtype ? chunk_logits : Tensor::empty({chunk_rows, vocabulary}, dtype, device);
    for (std::int64_t first_row = 0; first_row < rows; first_row += chunk_rows) {
      const std::int64_t count = std::min(chunk_rows, rows - first_row);
      const Tensor logits = chunk_logits.narrow(0, 0, count), hidden_chunk = hidden_rows.narrow(0, first_row, count);
      const Tensor d_logits = gradients.any() ? chunk_d_logits.narrow(0, 0, count) : Tensor{};
      gemm(stream, hidden_chunk, false, weight.value(), true, logits, GradientMode::overwrite, {.bias = bias ? &bias_values : nullptr});
      run_body(stream, cross_entropy_rows_cpu, cross_entropy_rows_gpu,
               CrossEntropyRows{logits, targets, first_row, inverse_normalizer, row_losses, correct, d_logits});
      if (gradients.any()) gradients.add_chunk(stream, d_logits, hidden_chunk, weight.value(), first_row);
    }
  }
  if (rows == 0 && gradients.d_weight.defined()) fill(stream, gradients.d_weight, 0.0);
  if (rows == 0 && gradients.d_bias.defined()) fill(stream, gradients.d_bias, 0.0);

  const Tensor loss = Tensor::empty(Shape{}, sum_dtype, device);
  run_body(stream, sum_rows_cpu, sum_rows_gpu, row_losses, correct, inverse_normalizer, loss, result.counts);
  if (options.keep_row_losses) result.row_losses = row_losses;
  if (gradients.d_hidden.defined()) gradients.d_hidden = gradients.d_hidden.reshape(hidden.shape());
  std::vector<Variable> inputs{hidden, weight};
  if (bias) inputs.push_back(*bias);
  result.loss = tape.record_one("cross_entropy", inputs, loss, {gradients.d_hidden, gradients.d_weight, gradients.d_bias},
                                [n = inputs.size()](BackwardContext& context) { backward(context, n); });
  return result;
}

}  // namespace furlong::ops
