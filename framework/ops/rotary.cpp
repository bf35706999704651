#include "framework/ops/rotary.h"

#include <algorithm>

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void rotary_cpu(const Tensor& x, const Tensor& table, std::int64_t n_heads, bool inverse);
void rotary_table_cpu(const Tensor& table, double base);

RotaryTable::RotaryTable(std::int64_t d_head, double base) : d_head_(d_head), base_(base) {
  require(d_head > 0 && d_head % 2 == 0, "rotary: heads of {} dimensions, expected an even number", d_head);
  require(base > 0, "rotary: base {}, expected a positive number", base);
}

Tensor RotaryTable::get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n) {
  require(first_position >= 0 && n >= 0, "rotary: {} positions from {}", n, first_position);
  const bool fits = table_.defined() && table_.dtype() == dtype && table_.device() == stream.device;
  const std::int64_t needed = first_position + n;
  if (!fits || table_.extent(0) < needed) {
    const std::int64_t rows = std::max(needed, fits ? 2 * table_.extent(0) : std::int64_t{1});
    table_ = Tensor::empty({rows, 2, d_head_ / 2}, dtype, stream.device);
    if (runs_on_cpu(stream, "rotary")) rotary_table_cpu(table_, base_);
  }
  return table_.narrow(0, first_position, n);
}

Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position, RotaryTable& table) {
  require(x.shape().rank() >= 2 && n_heads > 0 && x.extent(-1) >= n_heads * d_head && x.value().has_contiguous_rows(),
          "rotary: x is {}, expected [batch, n, at least {} heads x {}] with contiguous rows", x.shape().text(), n_heads, d_head);
  require(table.d_head() == d_head, "rotary: heads of {} dimensions with a table for {}", d_head, table.d_head());
  // Asked here as well as by record_in_place, which would find out after the values have changed.
  require(!tape.records({&x}) || !x.slot()->persistent, "rotary: a parameter or leaf cannot be changed in place");
  const Tensor angles = table.get(tape.stream(), accumulate_dtype(x.dtype()), first_position, x.extent(-2));
  if (runs_on_cpu(tape.stream(), "rotary")) rotary_cpu(x.value(), angles, n_heads, false);
  return tape.record_in_place("rotary", x, {angles}, [n_heads](BackwardContext& context) {
    if (runs_on_cpu(context.stream(), "rotary")) rotary_cpu(context.d_output(), context.saved(0), n_heads, true);
  });
}

}  // namespace furlong::ops
