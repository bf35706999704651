#include "framework/ops/elementwise/weighted_sum.h"

#include "framework/primitives/arithmetic.h"

namespace furlong::ops {

Variable weighted_sum(Tape& tape, const Variable& x, const Variable& y, double scale) {
  require(x.shape() == y.shape() && x.dtype() == y.dtype() && x.value().is_contiguous() && y.value().is_contiguous(),
          "weighted_sum: {} {} and {} {}, expected contiguous tensors of one shape and dtype", name_of(x.dtype()),
          x.shape().text(), name_of(y.dtype()), y.shape().text());
  const Tensor sum = Tensor::empty(x.shape(), x.dtype(), tape.device());
  convert(tape.stream(), sum, x.value());
  add(tape.stream(), sum, y.value(), GradientMode::accumulate, scale);
  return tape.record_one("weighted_sum", {x, y}, sum, {}, [scale](BackwardContext& context) {
    const Tensor d_sum = context.d_output();
    if (scale != 1) {
      if (const GradientTarget d_y = context.d_input(1); d_y.wanted())
        add(context.stream(), d_y.tensor, d_sum, d_y.mode, scale);
    } else if (context.wants(1)) {
      context.pass(1, d_sum);
    }
    if (context.wants(0)) context.pass(0, d_sum);
  });
}

}  // namespace furlong::ops
