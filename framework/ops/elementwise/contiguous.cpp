#include "framework/ops/elementwise/contiguous.h"

#include "framework/primitives/arithmetic.h"

namespace furlong::ops {

Variable contiguous(Tape& tape, const Variable& x) {
  if (x.value().is_contiguous()) return x;
  require(x.value().has_contiguous_rows(), "contiguous: rows of {} are not contiguous", x.shape().text());
  const Tensor copy = Tensor::empty(x.shape(), x.dtype(), tape.device());
  convert(tape.stream(), copy, x.value());
  return tape.record_one("contiguous", {x}, copy, {}, [](BackwardContext& context) {
    if (const GradientTarget d_x = context.d_input(0); d_x.wanted())
      add(context.stream(), d_x.tensor, context.d_output(), d_x.mode);
  });
}

}  // namespace furlong::ops
