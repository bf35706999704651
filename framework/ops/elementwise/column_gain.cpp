#include "framework/ops/elementwise/column_gain.h"

#include <algorithm>

#include "framework/ops/elementwise/column_gain_kernels.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::ops {

namespace {

constexpr std::int64_t max_blocks = 64;  // of rows, for any number of threads

void column_gain_backward(BackwardContext& context) {
  const Tensor &x = context.saved(0), &gain = context.saved(1), d_y = context.d_output();
  const Stream& stream = context.stream();
  const GradientTarget d_x = context.d_input(0), d_gain = context.d_input(1);
  if (d_x.wanted()) dispatch_kernel(stream, column_gain_cpu, column_gain_gpu, d_y, gain, d_x.tensor, d_x.accumulates());
  if (!d_gain.wanted()) return;
  const std::int64_t columns = x.extent(-1);
  const Tensor blocks =
      Tensor::empty({std::clamp<std::int64_t>(x.shape().rows(), 1, max_blocks), columns}, gain.dtype(), stream.device);
  const Tensor sum = Tensor::empty({columns}, gain.dtype(), stream.device);
  dispatch_kernel(stream, column_gain_d_gain_cpu, column_gain_d_gain_gpu, x, d_y, blocks, sum);
  add(stream, d_gain.tensor, sum, d_gain.mode);
}

}  // namespace

Variable column_gain(Tape& tape, const Variable& x, const Variable& gain) {
  require(x.shape().rank() >= 1 && x.value().is_contiguous(), "column_gain: x {} is not contiguous", x.shape().text());
  require(gain.shape() == Shape({x.extent(-1)}) && gain.value().is_contiguous(),
          "column_gain: gain is {}, expected contiguous [{}]", gain.shape().text(), x.extent(-1));
  const DType sum_dtype = accumulate_dtype(x.dtype());
  Tensor factors = gain.value();
  if (factors.dtype() != sum_dtype) {
    factors = Tensor::empty(gain.shape(), sum_dtype, tape.device());
    convert(tape.stream(), factors, gain.value());
  }
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  dispatch_kernel(tape.stream(), column_gain_cpu, column_gain_gpu, x.value(), factors, y, false);
  return tape.record_one("column_gain", {x, gain}, y, {x.value(), factors}, column_gain_backward);
}

}  // namespace furlong::ops
