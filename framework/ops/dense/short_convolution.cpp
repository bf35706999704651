#include "framework/ops/dense/short_convolution.h"

#include "framework/ops/attention/positions/document_positions.h"
#include "framework/ops/dense/short_convolution_kernels.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {

namespace {

void check_history(const Tensor& history, const Shape& shape, DType dtype) {
  require(history.shape() == shape && history.dtype() == dtype && history.is_contiguous(),
          "short_convolution: history is {} {}, expected {} {}", name_of(history.dtype()), history.shape().text(),
          name_of(dtype), shape.text());
}

enum class SavedConvolution : std::uint8_t { x, by_tap, history, positions };

void short_convolution_backward(BackwardContext& context) {
  const Tensor &x = context.saved(SavedConvolution::x), &by_tap = context.saved(SavedConvolution::by_tap),
               &history = context.saved(SavedConvolution::history),
               &positions = context.saved(SavedConvolution::positions);
  const Tensor d_y = context.d_output();
  const GradientTarget d_x = context.d_input(0);
  if (d_x.wanted())
    dispatch_kernel(context.stream(), short_convolution_d_x_cpu, short_convolution_d_x_gpu, d_y, by_tap, positions,
                    d_x);
  const GradientTarget d_weight = context.d_input(1);
  if (!d_weight.wanted()) return;
  const std::int64_t blocks = short_convolution_blocks(x.device(), d_y.shape().rows());
  const Tensor partial =
      Tensor::empty({blocks, by_tap.extent(0), by_tap.extent(1)}, accumulate_dtype(x.dtype()), x.device());
  dispatch_kernel(context.stream(), short_convolution_d_weight_cpu, short_convolution_d_weight_gpu, x, history,
                  positions, d_y, partial, d_weight);
}

}  // namespace

Variable short_convolution(Tape& tape, const Variable& x, const Variable& weight, const Tensor* history,
                           const Tensor* updated_history, const Tensor* documents) {
  require(x.shape().rank() == 3 && x.value().has_contiguous_rows(),
          "short_convolution: x is {}, expected [batch, n, channels] with contiguous rows", x.shape().text());
  const std::int64_t batch = x.extent(0), channels = x.extent(2);
  require(weight.shape().rank() == 2 && weight.extent(0) == channels && weight.value().is_contiguous(),
          "short_convolution: weight is {}, expected contiguous [{}, width]", weight.shape().text(), channels);
  const std::int64_t width = weight.extent(1);
  require(width >= 1 && width <= max_short_convolution_width, "short_convolution: width {}, expected 1 to {}", width,
          max_short_convolution_width);
  const DType sum_dtype = accumulate_dtype(x.dtype());
  require(weight.dtype() == x.dtype() || weight.dtype() == sum_dtype,
          "short_convolution: weight is {} and x is {}, expected x's dtype or float32", name_of(weight.dtype()),
          name_of(x.dtype()));
  const Shape history_shape{batch, width - 1, channels};
  if (history) check_history(*history, history_shape, x.dtype());
  if (updated_history) check_history(*updated_history, history_shape, x.dtype());
  require(!documents || (!history && !updated_history),
          "short_convolution: documents and a history are mutually exclusive");
  require(!documents || documents->shape() == Shape({batch, x.extent(1)}),
          "short_convolution: documents are {} for x {}, expected [{}, {}]", documents ? documents->shape().text() : "",
          x.shape().text(), batch, x.extent(1));

  // Channels are adjacent in x, so the kernels need them adjacent in the weights too: [width, channels], in the
  // accumulation dtype.
  const Tensor by_tap = Tensor::empty({width, channels}, sum_dtype, tape.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  Tensor before = history ? *history : Tensor{};
  if (tape.records({&x, &weight}) && history && updated_history && updated_history->shares_memory_with(*history))
    before = history->clone();
  const Tensor positions = documents ? document_positions(tape.stream(), *documents) : Tensor{};
  dispatch_kernel(tape.stream(), short_convolution_taps_cpu, short_convolution_taps_gpu, weight.value(), by_tap);
  dispatch_kernel(tape.stream(), short_convolution_cpu, short_convolution_gpu, x.value(), by_tap, before, positions, y);
  if (updated_history) {
    dispatch_kernel(tape.stream(), short_convolution_history_cpu, short_convolution_history_gpu, x.value(),
                    history ? *history : Tensor{}, *updated_history);
  }
  return tape.record_one("short_convolution", {x, weight}, y,
                         saved_by_name<SavedConvolution>({{SavedConvolution::x, x.value()},
                                                          {SavedConvolution::by_tap, by_tap},
                                                          {SavedConvolution::history, before},
                                                          {SavedConvolution::positions, positions}}),
                         short_convolution_backward);
}

}  // namespace furlong::ops
