#include "framework/ops/loss/classifier_gradients.h"

#include <algorithm>
#include <bit>

#include "framework/core/gpu_engine.h"
#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {
namespace {

void classifier_backward(BackwardContext& context, std::size_t inputs) {
  const Tensor d_loss = context.d_output();
  const Device& device = context.stream().device;
  const double scale = device.is_cpu() ? scalar_cpu(d_loss) : 1.0;
  // On a GPU d_loss stays in device memory. The gradients are scaled in place because nothing else refers to them;
  // d_hidden is passed on as the gradient.
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

}  // namespace

std::int64_t max_logits_on_gpu(std::int64_t memory_bytes) {
  const auto share = static_cast<std::uint64_t>(std::max<std::int64_t>(1, memory_bytes / 256));
  return static_cast<std::int64_t>(std::min<std::uint64_t>(std::bit_floor(share), 1 << 28));
}

std::int64_t logits_chunk_rows(const Device& device, std::int64_t rows, std::int64_t vocabulary) {
  const bool many = device.type == DeviceType::cuda;
  std::int64_t chunk_elements = 1 << 21;
  if (many) {
    // All memory, not the free part: the same in every step and run, so that results repeat bit for bit.
    static const std::int64_t on_gpu =
        max_logits_on_gpu(require_gpu_engine(device.type).describe(device.index).memory_bytes);
    chunk_elements = on_gpu;
  }
  const std::int64_t min_rows = many ? 512 : 64;
  const std::int64_t max_rows = std::max(min_rows, chunk_elements / vocabulary);
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + max_rows - 1) / max_rows);
  return std::max<std::int64_t>(1, (rows + chunks - 1) / chunks);
}

Tensor logits_chunk(const Device& device, std::int64_t rows, std::int64_t vocabulary, DType dtype) {
  constexpr std::int64_t border = 8;  // elements: 16 bytes of bfloat16
  const std::int64_t stride = device.is_gpu() ? (vocabulary + border - 1) / border * border : vocabulary;
  return Tensor::empty({rows, stride}, dtype, device).narrow(1, 0, vocabulary);
}

std::pair<Tensor, Tensor> count_targets(const Stream& stream, const Tensor& targets, std::int64_t vocabulary,
                                        const std::optional<double>& normalizer, const Tensor& device_normalizer,
                                        DType sum_dtype) {
  const Device& device = stream.device;
  const Tensor counts = Tensor::empty({2}, DType::int32, device), inverse = Tensor::empty({1}, sum_dtype, device);
  const double divisor = normalizer.value_or(0);
  if (device.is_cpu()) count_targets_cpu(targets, vocabulary, divisor, device_normalizer, counts, inverse);
  if (device.is_gpu()) count_targets_gpu(stream, targets, divisor, device_normalizer, counts, inverse);
  return {counts, inverse};
}

Tensor in_dtype(const Stream& stream, const Tensor& values, DType dtype) {
  if (values.dtype() == dtype) return values;
  const Tensor converted = Tensor::empty(values.shape(), dtype, values.device());
  convert(stream, converted, values);
  return converted;
}

ClassifierGradients::ClassifierGradients(const Tape& tape, const Variable& hidden, const Variable& weight,
                                         const Variable* bias, const CountedRows& rows)
    : rows_(rows) {
  const DType dtype = hidden.dtype(), sum_dtype = accumulate_dtype(dtype);
  const Device& device = tape.device();
  if (tape.records({&hidden})) d_hidden_ = Tensor::empty({hidden.shape().rows(), hidden.extent(-1)}, dtype, device);
  if (tape.records({&weight})) d_weight_ = Tensor::empty(weight.shape(), sum_dtype, device);
  if (bias && tape.records({bias})) d_bias_ = Tensor::empty(bias->shape(), sum_dtype, device);
  if (d_hidden_.defined() && !rows.all()) fill(tape.stream(), d_hidden_, 0.0);
  if (hidden.shape().rows() > 0) return;
  for (const Tensor& gradient : {d_weight_, d_bias_}) {
    if (gradient.defined()) fill(tape.stream(), gradient, 0.0);  // there are no chunks
  }
}

void ClassifierGradients::add_chunk(const Stream& stream, const Tensor& d_logits, const Tensor& hidden,
                                    const Tensor& weight, std::int64_t first_row) const {
  const GradientMode mode = first_row == 0 ? GradientMode::overwrite : GradientMode::accumulate;
  if (d_hidden_.defined()) {
    const Tensor d_rows =
        rows_.all() ? d_hidden_.narrow(0, first_row, hidden.extent(0)) : Tensor::empty(hidden.shape(), hidden.dtype());
    gemm(stream, d_logits, false, weight, false, d_rows, GradientMode::overwrite);
    if (!rows_.all()) rows_.scatter(d_rows, d_hidden_, first_row);
  }
  if (d_weight_.defined()) gemm(stream, d_logits, true, hidden, false, d_weight_, mode);
  if (d_bias_.defined()) column_sum(stream, d_logits, {d_bias_, mode});
}

Variable ClassifierGradients::record(Tape& tape, const char* name, const Variable& hidden, const Variable& weight,
                                     const Variable* bias, const Tensor& loss) {
  if (d_hidden_.defined()) d_hidden_ = d_hidden_.reshape(hidden.shape());
  std::vector<Variable> inputs{hidden, weight};
  if (bias) inputs.push_back(*bias);
  return tape.record_one(name, inputs, loss, {d_hidden_, d_weight_, d_bias_},
                         [n = inputs.size()](BackwardContext& context) { classifier_backward(context, n); });
}

}  // namespace furlong::ops
