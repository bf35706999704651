#include "framework/ops/pooling.h"

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void pool_cpu(const Tensor& x, const Tensor& mask, bool mean, const Tensor& output);
void pool_backward_cpu(const Tensor& d_output, const Tensor& mask, bool mean, const GradientTarget& d_x);
void pair_features_cpu(const Tensor& x, const Tensor& output);
void pair_features_backward_cpu(const Tensor& x, const Tensor& d_output, const GradientTarget& d_x);

Variable pool(Tape& tape, const Variable& x, const Tensor& mask, Pooling kind) {
  require(x.shape().rank() == 3 && x.value().is_contiguous(), "pool: x is {}, expected [batch, n, d], contiguous", x.shape().text());
  require(x.extent(1) > 0, "pool: sequences of no positions");
  require(!mask.defined() || (mask.dtype() == DType::int32 && mask.is_contiguous() && mask.shape() == Shape({x.extent(0), x.extent(1)})),
          "pool: a mask of {} {}, expected int32 [{}, {}]", name_of(mask.dtype()), mask.shape().text(), x.extent(0), x.extent(1));
  const bool mean = kind == Pooling::mean;
  const Tensor output = Tensor::empty({x.extent(0), x.extent(2)}, x.dtype(), tape.device());
  if (runs_on_cpu(tape.stream(), "pool")) pool_cpu(x.value(), mask, mean, output);
  return tape.record_one("pool", {x}, output, {mask}, [mean](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    if (d_x.wanted() && runs_on_cpu(context.stream(), "pool")) pool_backward_cpu(context.d_output(), context.saved(0), mean, d_x);
  });
}

Variable pair_features(Tape& tape, const Variable& x) {
  require(x.shape().rank() == 2 && x.value().is_contiguous() && x.extent(0) % 2 == 0,
          "pair_features: x is {}, expected [2 pairs, d], contiguous", x.shape().text());
  const Tensor output = Tensor::empty({x.extent(0) / 2, 4 * x.extent(1)}, x.dtype(), tape.device());
  if (runs_on_cpu(tape.stream(), "pair_features")) pair_features_cpu(x.value(), output);
  return tape.record_one("pair_features", {x}, output, {x.value()}, [](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    if (d_x.wanted() && runs_on_cpu(context.stream(), "pair_features"))
      pair_features_backward_cpu(context.saved(0), context.d_output(), d_x);
  });
}

}  // namespace furlong::ops
