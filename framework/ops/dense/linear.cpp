#include "framework/ops/dense/linear.h"

#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace {

void linear_backward(BackwardContext& context, const Rematerialize* rematerialize_x) {
  const Tensor d_y = as_matrix(context.d_output());
  const Tensor& weight = context.saved(1);
  if (const GradientTarget d_x = context.d_input(0); d_x.wanted()) {
    gemm(context.stream(), d_y, false, weight, false, as_matrix(d_x.tensor), d_x.mode);
  }
  if (const GradientTarget d_weight = context.d_input(1); d_weight.wanted()) {
    const Tensor x = rematerialize_x ? (*rematerialize_x)(context.stream()) : context.saved(0);
    GemmEpilogue epilogue;
    epilogue.bias_gradient = context.d_input(2);
    gemm(context.stream(), d_y, true, as_matrix(x), false, d_weight.tensor, d_weight.mode, epilogue);
  } else {
    column_sum(context.stream(), d_y, context.d_input(2));
  }
}

}  // namespace

Variable linear(Tape& tape, const Variable& x, const Variable& weight, const Variable* bias,
                GemmEpilogue::Activation activation) {
  require(weight.shape().rank() == 2 && x.shape().rank() >= 1 && x.extent(-1) == weight.extent(1),
          "linear: x is {} and weight is {}, expected [..., inner] and [outer, inner]", x.shape().text(),
          weight.shape().text());
  const bool recorded = bias ? tape.records({&x, &weight, bias}) : tape.records({&x, &weight});
  require(!recorded || activation == GemmEpilogue::Activation::none,
          "linear: cannot fuse an activation while the tape records the op");
  Shape shape = x.shape();
  shape[-1] = weight.extent(0);
  const Tensor y = Tensor::empty(shape, x.dtype(), tape.device());
  GemmEpilogue epilogue;
  epilogue.activation = activation;
  if (bias) epilogue.bias = &bias->value();
  gemm(tape.stream(), as_matrix(x.value()), false, weight.value(), true, as_matrix(y), GradientMode::overwrite,
       epilogue);
  const std::shared_ptr<const Rematerialize> rematerialize = weight.requires_gradient() ? x.rematerialize() : nullptr;
  const bool keeps_x = weight.requires_gradient() && !rematerialize;
  return tape.record_one("linear", {x, weight, bias ? *bias : Variable{}}, y,
                         {keeps_x ? x.value() : Tensor{}, weight.value()},
                         [rematerialize](BackwardContext& context) { linear_backward(context, rematerialize.get()); });
}

}  // namespace furlong::ops
