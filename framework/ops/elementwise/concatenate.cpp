#include "framework/ops/elementwise/concatenate.h"

#include "framework/primitives/arithmetic.h"

namespace furlong::ops {
namespace {

Shape concatenated_shape(const std::vector<Variable>& parts) {
  require(!parts.empty() && parts[0].shape().rank() >= 1, "concatenate_last: no parts, or a scalar");
  Shape whole = parts[0].shape();
  whole[-1] = 0;
  for (const Variable& part : parts) {
    bool fits =
        part.shape().rank() == whole.rank() && part.dtype() == parts[0].dtype() && part.value().has_contiguous_rows();
    for (int i = 0; fits && i + 1 < whole.rank(); ++i) fits = part.extent(i) == whole[i];
    require(fits, "concatenate_last: {} {} does not match {} {}", name_of(part.dtype()), part.shape().text(),
            name_of(parts[0].dtype()), parts[0].shape().text());
    whole[-1] += part.extent(-1);
  }
  return whole;
}

}  // namespace

Variable concatenate_last(Tape& tape, const std::vector<Variable>& parts) {
  const Shape shape = concatenated_shape(parts);
  if (parts.size() == 1) return parts[0];
  const Tensor whole = Tensor::empty(shape, parts[0].dtype(), tape.device());
  std::vector<std::int64_t> widths;
  std::int64_t first = 0;
  for (const Variable& part : parts) {
    widths.push_back(part.extent(-1));
    convert(tape.stream(), whole.narrow(shape.rank() - 1, first, part.extent(-1)), part.value());
    first += part.extent(-1);
  }
  return tape.record_one("concatenate_last", parts, whole, {}, [widths](BackwardContext& context) {
    const Tensor d_whole = context.d_output();
    std::int64_t start = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (context.wants(i)) context.pass(i, d_whole.narrow(d_whole.shape().rank() - 1, start, widths[i]));
      start += widths[i];
    }
  });
}

}  // namespace furlong::ops
