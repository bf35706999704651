#include "framework/ops/dropout.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void dropout_cpu(const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold, double scale, const RandomKey& key,
                 std::uint64_t first_index);

Variable dropout(Tape& tape, const Variable& x, double rate, const RandomKey& key, std::uint64_t first_index) {
  require(rate >= 0 && rate < 1, "dropout: rate {}, expected 0 <= rate < 1", rate);
  require(x.value().has_contiguous_rows(), "dropout: rows of {} are not contiguous", x.shape().text());
  if (rate == 0) return x;
  // A rate within 2^-33 of 1 would round to 2^32: the bound keeps the threshold a 32-bit word.
  const auto threshold = static_cast<std::uint32_t>(std::min(std::round(rate * 0x1p32), 0x1p32 - 1));
  const double scale = 1 / (1 - rate);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  if (runs_on_cpu(tape.stream(), "dropout")) dropout_cpu(x.value(), y, false, threshold, scale, key, first_index);
  return tape.record_one("dropout", {x}, y, {}, [=](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    const Tensor d_y = context.d_output();
    if (!d_x.wanted() || !runs_on_cpu(context.stream(), "dropout")) return;
    dropout_cpu(d_y, d_x.tensor, d_x.accumulates(), threshold, scale, key, first_index);
  });
}

}  // namespace furlong::ops
