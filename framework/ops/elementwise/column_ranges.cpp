#include "framework/ops/elementwise/column_ranges.h"

#include "framework/primitives/arithmetic.h"

namespace furlong::ops {
namespace {

void column_ranges_backward(BackwardContext& context, const std::vector<std::int64_t>& lengths) {
  const GradientTarget d_x = context.d_input(0);
  if (!d_x.wanted()) return;
  const int last = d_x.tensor.shape().rank() - 1;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Tensor range = d_x.tensor.narrow(last, start, lengths[i]), d_range = context.d_output(i);
    if (d_range.defined()) {
      add(context.stream(), range, d_range, d_x.mode);
    } else if (!d_x.accumulates()) {
      fill(context.stream(), range, 0.0);
    }
    start += lengths[i];
  }
}

}  // namespace

std::vector<Variable> column_ranges(Tape& tape, const Variable& x, const std::vector<std::int64_t>& lengths) {
  const int last = x.shape().rank() - 1;
  std::vector<Tensor> views;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    require(length > 0 && start + length <= x.extent(-1), "column_ranges: range [{}, {}) does not fit into {} columns",
            start, start + length, x.extent(-1));
    views.push_back(x.value().narrow(last, start, length));
    start += length;
  }
  require(start == x.extent(-1), "column_ranges: the lengths sum to {}, expected {} columns", start, x.extent(-1));
  return tape.record("column_ranges", {x}, views, {},
                     [lengths](BackwardContext& context) { column_ranges_backward(context, lengths); });
}

}  // namespace furlong::ops
