#include "framework/ops/dropout.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/dropout_bodies.h"

namespace furlong::ops {

Variable dropout(Tape& tape, const Variable& x, double rate, const RandomKey& key, std::uint64_t first_index, const Tensor& device_step) {
  require(rate >= 0 && rate < 1, "dropout: rate {}, expected 0 <= rate < 1", rate);
  require(x.value().has_contiguous_rows(), "dropout: rows of {} are not contiguous", x.shape().text());
  require(!device_step.defined() || (device_step.dtype() == DType::float64 && device_step.elements() == 1), "dropout: device_step is {} {}",
          name_of(device_step.dtype()), device_step.shape().text());
  if (rate == 0) return x;
  // A rate within 2^-33 of 1 would round to 2^32: the bound keeps the threshold a 32-bit word.
  const auto threshold = static_cast<std::uint32_t>(std::min(std::round(rate * 0x1p32), 0x1p32 - 1));
  const double scale = 1 / (1 - rate);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  run_body(tape.stream(), dropout_cpu, dropout_gpu, x.value(), y, false, threshold, scale, key, first_index, device_step);
  return tape.record_one("dropout", {x}, y, {}, [=](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    const Tensor d_y = context.d_output();
    if (!d_x.wanted()) return;
    run_body(context.stream(), dropout_cpu, dropout_gpu, d_y, d_x.tensor, d_x.accumulates(), threshold, scale, key, first_index,
             device_step);
  });
}

}  // namespace furlong::ops
