#include "framework/ops/rotary.h"

#include <algorithm>

#include "framework/ops/dispatch.h"

namespace furlong::ops {

// `rows` (int32, or undefined: the token's place t in its sequence) says which row of the table each token is turned by.
void rotary_cpu(const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads, bool inverse);
void rotary_table_cpu(const Tensor& table, double base, std::int64_t first_position);
// One row of the table for each position, in order; `rows` is given 0, 1, 2, ...
void rotary_rows_cpu(const Tensor& positions, const Tensor& table, const Tensor& rows, double base);
std::int64_t largest_position_cpu(const Tensor& positions);

RotaryTable::RotaryTable(std::int64_t d_head, double base) : d_head_(d_head), base_(base) {
  require(d_head > 0 && d_head % 2 == 0, "rotary: heads of {} dimensions, expected an even number", d_head);
  require(base > 0, "rotary: base {}, expected a positive number", base);
}

/// Rows [first, first + n) of `part`; where it does not have them, it is made again with `kept` rows from `first_kept` on.
Tensor RotaryTable::rows(const Stream& stream, DType dtype, Part& part, std::int64_t first, std::int64_t n, std::int64_t first_kept,
                         std::int64_t kept) const {
  const bool fits = part.table.defined() && part.table.dtype() == dtype && part.table.device() == stream.device;
  if (!fits || first < part.first || first + n > part.first + part.table.extent(0)) {
    part = {Tensor::empty({kept, 2, d_head_ / 2}, dtype, stream.device), first_kept};
    if (runs_on_cpu(stream, "rotary")) rotary_table_cpu(part.table, base_, first_kept);
  }
  return part.table.narrow(0, first - part.first, n);
}

Tensor RotaryTable::get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n) {
  require(first_position >= 0 && n >= 0, "rotary: {} positions from {}", n, first_position);
  const std::int64_t needed = first_position + n;
  if (first_position == 0 || needed <= most_kept) {
    const std::int64_t doubled = beginning_.table.defined() ? std::min(most_kept, 2 * beginning_.table.extent(0)) : 1;
    return rows(stream, dtype, beginning_, first_position, n, 0, std::max(needed, doubled));
  }
  return rows(stream, dtype, later_, first_position, n, first_position, std::max(n, least_window));
}

RotaryTable::Rows RotaryTable::at(const Stream& stream, DType dtype, const Tensor& positions) {
  const bool on_cpu = runs_on_cpu(stream, "rotary");
  const std::int64_t largest = on_cpu ? largest_position_cpu(positions) : positions.extent(-1) - 1;
  if (largest < most_kept) return {get(stream, dtype, 0, largest + 1), positions};
  // The tensor is kept, so that its memory is not given to other positions; nobody changes it.
  if (!far_positions_.defined() || !far_positions_.shares_memory_with(positions) || far_positions_.shape() != positions.shape() ||
      far_.table.dtype() != dtype) {
    far_ = {Tensor::empty({positions.elements(), 2, d_head_ / 2}, dtype, stream.device),
            Tensor::empty(positions.shape(), DType::int32, stream.device)};
    far_positions_ = positions;
    if (on_cpu) rotary_rows_cpu(positions, far_.table, far_.row, base_);
  }
  return far_;
}

Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position, RotaryTable& table,
                const Tensor* positions) {
  require(x.shape().rank() >= 2 && n_heads > 0 && x.extent(-1) >= n_heads * d_head && x.value().has_contiguous_rows(),
          "rotary: x is {}, expected [batch, n, at least {} heads x {}] with contiguous rows", x.shape().text(), n_heads, d_head);
  require(table.d_head() == d_head, "rotary: heads of {} dimensions with a table for {}", d_head, table.d_head());
  // Asked here as well as by record_in_place, which would find out after the values have changed.
  require(!tape.records({&x}) || !x.slot()->persistent, "rotary: a parameter or leaf cannot be changed in place");
  require(!positions || (positions->dtype() == DType::int32 && positions->is_contiguous() && x.shape().rank() == 3 && first_position == 0 &&
                         positions->shape() == Shape({x.extent(0), x.extent(1)})),
          "rotary: positions {} {} from {} for x {}, expected int32 [batch, n] from 0", positions ? name_of(positions->dtype()) : "",
          positions ? positions->shape().text() : "", first_position, x.shape().text());
  const DType dtype = accumulate_dtype(x.dtype());
  const RotaryTable::Rows angles = positions ? table.at(tape.stream(), dtype, *positions)
                                             : RotaryTable::Rows{table.get(tape.stream(), dtype, first_position, x.extent(-2)), {}};
  if (runs_on_cpu(tape.stream(), "rotary")) rotary_cpu(x.value(), angles.table, angles.row, n_heads, false);
  return tape.record_in_place("rotary", x, {angles.table, angles.row}, [n_heads](BackwardContext& context) {
    if (runs_on_cpu(context.stream(), "rotary")) rotary_cpu(context.d_output(), context.saved(0), context.saved(1), n_heads, true);
  });
}

}  // namespace furlong::ops
