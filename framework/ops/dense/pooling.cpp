#include "framework/ops/dense/pooling.h"

#include "framework/ops/dense/pooling_kernels.h"

namespace furlong::ops {

Variable pool(Tape& tape, const Variable& x, const Tensor& mask, Pooling kind) {
  require(x.shape().rank() == 3 && x.value().is_contiguous(), "pool: x is {}, expected [batch, n, d], contiguous",
          x.shape().text());
  require(x.extent(1) > 0, "pool: the sequences have length 0");
  require(!mask.defined() || (mask.dtype() == DType::int32 && mask.is_contiguous() &&
                              mask.shape() == Shape({x.extent(0), x.extent(1)})),
          "pool: mask is {} {}, expected int32 [{}, {}]", name_of(mask.dtype()), mask.shape().text(), x.extent(0),
          x.extent(1));
  const bool mean = kind == Pooling::mean;
  const Tensor output = Tensor::empty({x.extent(0), x.extent(2)}, x.dtype(), tape.device());
  dispatch_kernel(tape.stream(), pool_cpu, pool_gpu, x.value(), mask, mean, output);
  return tape.record_one("pool", {x}, output, {mask}, [mean](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    if (!d_x.wanted()) return;
    const Tensor d_output = context.d_output();
    require(d_x.tensor.is_contiguous() && d_output.is_contiguous(), "pool: a gradient is not contiguous");
    dispatch_kernel(context.stream(), pool_backward_cpu, pool_backward_gpu, d_output, context.saved(0), mean,
                    d_x.tensor, d_x.accumulates());
  });
}

Variable pair_features(Tape& tape, const Variable& x) {
  require(x.shape().rank() == 2 && x.value().is_contiguous() && x.extent(0) % 2 == 0,
          "pair_features: x is {}, expected [2 pairs, d], contiguous", x.shape().text());
  const Tensor output = Tensor::empty({x.extent(0) / 2, 4 * x.extent(1)}, x.dtype(), tape.device());
  dispatch_kernel(tape.stream(), pair_features_cpu, pair_features_gpu, x.value(), output);
  return tape.record_one("pair_features", {x}, output, {x.value()}, [](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    if (!d_x.wanted()) return;
    const Tensor d_output = context.d_output();
    require(d_x.tensor.is_contiguous() && d_output.is_contiguous(), "pair_features: a gradient is not contiguous");
    dispatch_kernel(context.stream(), pair_features_backward_cpu, pair_features_backward_gpu, context.saved(0),
                    d_output, d_x.tensor, d_x.accumulates());
  });
}

}  // namespace furlong::ops
