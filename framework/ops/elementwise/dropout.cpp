#include "framework/ops/elementwise/dropout.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/elementwise/dropout_kernels.h"

namespace furlong::ops {

Variable dropout(Tape& tape, const Variable& x, double rate, const RandomKey& key, std::uint64_t first_index,
                 const Tensor& device_step, std::uint64_t row_stride) {
  require(rate >= 0 && rate < 1, "dropout: rate {}, expected 0 <= rate < 1", rate);
  require(x.value().has_contiguous_rows(), "dropout: rows of {} are not contiguous", x.shape().text());
  require(!device_step.defined() || (device_step.dtype() == DType::float64 && device_step.elements() == 1),
          "dropout: device_step is {} {}, expected float64 [1]", name_of(device_step.dtype()),
          device_step.shape().text());
  if (rate == 0) return x;
  // A rate within 2^-33 of 1 would round to 2^32. Clamping keeps the threshold a 32-bit word.
  const auto threshold = static_cast<std::uint32_t>(std::min(std::round(rate * 0x1p32), 0x1p32 - 1));
  const double scale = 1 / (1 - rate);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  const auto run = [=](const Stream& stream, const Tensor& source, const Tensor& target, bool accumulate) {
    const auto part = [&](const Tensor& from, const Tensor& to, std::uint64_t index) {
      dispatch_kernel(stream, dropout_cpu, dropout_gpu, from, to, accumulate, threshold, scale, key, index,
                      device_step);
    };
    if (row_stride == 0) return part(source, target, first_index);
    for (std::int64_t row = 0; row < source.extent(0); ++row)
      part(source.narrow(0, row, 1), target.narrow(0, row, 1),
           first_index + static_cast<std::uint64_t>(row) * row_stride);
  };
  run(tape.stream(), x.value(), y, false);
  return tape.record_one("dropout", {x}, y, {}, [=](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    const Tensor d_y = context.d_output();
    if (!d_x.wanted()) return;
    run(context.stream(), d_y, d_x.tensor, d_x.accumulates());
  });
}

}  // namespace furlong::ops
