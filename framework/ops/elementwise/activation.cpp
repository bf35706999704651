#include "framework/ops/elementwise/activation.h"

#include "framework/primitives/activation_kernels.h"

namespace furlong::ops {

namespace {

Tensor activated(const Stream& stream, const Tensor& x, ActivationKind kind) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), stream.device);
  dispatch_kernel(stream, activation_cpu, activation_gpu, x, y, kind);
  return y;
}

Tensor gated_activated(const Stream& stream, const Tensor& x, ActivationKind kind) {
  Shape shape = x.shape();
  shape[-1] /= 2;
  const Tensor y = Tensor::empty(shape, x.dtype(), stream.device);
  dispatch_kernel(stream, gated_activation_cpu, gated_activation_gpu, x, y, kind);
  return y;
}

}  // namespace

Variable activation(Tape& tape, const Variable& x, ActivationKind kind) {
  require(x.value().has_contiguous_rows(), "activation: rows of {} are not contiguous", x.shape().text());
  const Tensor y = activated(tape.stream(), x.value(), kind);
  const Variable result = tape.record_one(name_of(kind), {x}, y, {x.value()}, [kind](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    const Tensor d_y = context.d_output();
    if (!d_x.wanted()) return;
    dispatch_kernel(context.stream(), activation_backward_cpu, activation_backward_gpu, context.saved(0), d_y,
                    d_x.tensor, d_x.accumulates(), kind);
  });
  if (!tape.recomputes_values()) return result;
  return result.with_rematerialize([x = x.value(), kind](const Stream& stream) { return activated(stream, x, kind); });
}

Variable gated_activation(Tape& tape, const Variable& x, ActivationKind kind) {
  require(x.value().has_contiguous_rows(), "gated_activation: rows of {} are not contiguous", x.shape().text());
  require(x.shape().rank() >= 1 && x.extent(-1) % 2 == 0,
          "gated_activation: x is {}, expected an even last dimension (gate and up)", x.shape().text());
  const Tensor y = gated_activated(tape.stream(), x.value(), kind);
  const Variable result = tape.record_one("gated_activation", {x}, y, {x.value()}, [kind](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    const Tensor d_y = context.d_output();
    if (!d_x.wanted()) return;
    dispatch_kernel(context.stream(), gated_activation_backward_cpu, gated_activation_backward_gpu, context.saved(0),
                    d_y, d_x.tensor, d_x.accumulates(), kind);
  });
  if (!tape.recomputes_values()) return result;
  return result.with_rematerialize(
      [x = x.value(), kind](const Stream& stream) { return gated_activated(stream, x, kind); });
}

}  // namespace furlong::ops
