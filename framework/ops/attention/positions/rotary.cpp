#include "framework/ops/attention/positions/rotary.h"

#include <algorithm>
#include <limits>

#include "framework/ops/attention/positions/rotary_kernels.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::ops {
namespace {

std::int64_t largest_position(const Tensor& positions) {
  const auto* first = positions.data<std::int32_t>();
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < positions.elements(); ++i) {
    require(first[i] >= 0, "rotary: position {} of token {} is negative", first[i], i);
    largest = std::max<std::int64_t>(largest, first[i]);
  }
  return largest;
}

void multiply(const Stream& stream, const Tensor& table, double factor) {
  if (factor != 1) add(stream, table, table, GradientMode::overwrite, factor);
}

/// Computes one row for each position, in order.
Tensor rows_of(const Stream& stream, DType dtype, const Tensor& positions, const Tensor& frequencies, double factor) {
  const Tensor table = Tensor::empty({positions.elements(), 2, frequencies.extent(0)}, dtype, stream.device);
  dispatch_kernel(stream, rotary_rows_cpu, rotary_rows_gpu, table, frequencies, positions);
  multiply(stream, table, factor);
  return table;
}

}  // namespace

RotaryTable::RotaryTable(std::int64_t d_head, double base, const RotaryScaling& scaling)
    : d_head_(d_head),
      base_(base),
      factor_(rotary_attention_factor(scaling)),
      theta_(rotary_frequencies(d_head, base, scaling)) {}

const Tensor& RotaryTable::frequencies(const Device& device) {
  if (frequencies_.defined() && frequencies_.device() == device) return frequencies_;
  frequencies_ = Tensor::from(theta_, {d_head_ / 2}, device);
  return frequencies_;
}

/// Returns rows [first, first + n) of `part`. If it lacks them, recomputes it with `kept` rows from `first_kept` on.
Tensor RotaryTable::rows(const Stream& stream, DType dtype, Part& part, std::int64_t first, std::int64_t n,
                         std::int64_t first_kept, std::int64_t kept) {
  const bool fits = part.table.defined() && part.table.dtype() == dtype && part.table.device() == stream.device;
  if (!fits || first < part.first || first + n > part.first + part.table.extent(0)) {
    if (part.table.defined() && part.table.device().is_gpu() && part.first == 0) replaced_.push_back(part.table);
    part = {Tensor::empty({kept, 2, d_head_ / 2}, dtype, stream.device), first_kept};
    dispatch_kernel(stream, rotary_table_cpu, rotary_table_gpu, part.table, frequencies(stream.device), first_kept);
    multiply(stream, part.table, factor_);
  }
  return part.table.narrow(0, first - part.first, n);
}

Tensor RotaryTable::get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n) {
  require(first_position >= 0 && n >= 0, "rotary: {} positions from {}, expected no negative number", n,
          first_position);
  const std::int64_t needed = first_position + n;
  if (first_position == 0 || needed <= max_cached) {
    // On a GPU also beyond max_cached: replaced tables stay allocated, and doubling bounds their total by twice the
    // last one.
    const bool beyond = stream.device.is_gpu() && needed > max_cached;
    const std::int64_t most = beyond ? std::numeric_limits<std::int64_t>::max() : max_cached;
    const std::int64_t doubled = main_cache_.table.defined() ? std::min(most, 2 * main_cache_.table.extent(0)) : 1;
    return rows(stream, dtype, main_cache_, first_position, n, 0, std::max(needed, doubled));
  }
  return rows(stream, dtype, window_cache_, first_position, n, first_position, std::max(n, min_window));
}

RotaryTable::Rows RotaryTable::at(const Stream& stream, DType dtype, const Tensor& positions) {
  if (stream.device.is_gpu()) return {rows_of(stream, dtype, positions, frequencies(stream.device), factor_), {}};
  const std::int64_t largest = stream.device.is_cpu() ? largest_position(positions) : positions.extent(-1) - 1;
  if (largest < max_cached) return {get(stream, dtype, 0, largest + 1), positions};
  // cached_positions_ keeps the tensor alive, so its memory is not reused for other positions; nothing changes it.
  if (!cached_positions_.defined() || !cached_positions_.shares_memory_with(positions) ||
      cached_positions_.data<std::int32_t>() != positions.data<std::int32_t>() ||
      cached_positions_.shape() != positions.shape() || position_cache_.table.dtype() != dtype) {
    position_cache_ = {rows_of(stream, dtype, positions, frequencies(stream.device), factor_), {}};
    cached_positions_ = positions;
  }
  return position_cache_;
}

Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position,
                RotaryTable& table, const Tensor* positions) {
  require(x.shape().rank() >= 2 && n_heads > 0 && x.extent(-1) >= n_heads * d_head && x.value().has_contiguous_rows(),
          "rotary: x is {}, expected [batch, n, at least {} heads x {}] with contiguous rows", x.shape().text(),
          n_heads, d_head);
  require(table.d_head() == d_head, "rotary: heads have {} dimensions, but the table is for {}", d_head,
          table.d_head());
  // record_in_place checks this too, but only after the values have changed.
  require(!tape.records({&x}) || !x.slot()->persistent,
          "rotary: a parameter, or an input with a gradient (Variable::leaf), cannot be changed in place");
  require(!positions || (positions->dtype() == DType::int32 && positions->is_contiguous() && x.shape().rank() == 3 &&
                         first_position == 0 && positions->shape() == Shape({x.extent(0), x.extent(1)})),
          "rotary: positions are {} {} with first_position {} for x {}, expected int32 [batch, n] and first_position 0",
          positions ? name_of(positions->dtype()) : "", positions ? positions->shape().text() : "", first_position,
          x.shape().text());
  const DType dtype = accumulate_dtype(x.dtype());
  const RotaryTable::Rows angles =
      positions ? table.at(tape.stream(), dtype, *positions)
                : RotaryTable::Rows{table.get(tape.stream(), dtype, first_position, x.extent(-2)), {}};
  dispatch_kernel(tape.stream(), rotary_cpu, rotary_gpu, x.value(), angles.table, angles.row, n_heads, false);
  if (positions && tape.device().is_gpu()) {
    // Backward recomputes the rows of these positions. Stored, they would be one more tensor for every layer.
    const std::vector<Tensor> saved{*positions, table.frequencies(tape.device())};
    return tape.record_in_place(
        "rotary", x, saved, [n_heads, dtype, factor = table.attention_factor()](BackwardContext& context) {
          const Tensor rows = rows_of(context.stream(), dtype, context.saved(0), context.saved(1), factor);
          rotary_gpu(context.stream(), context.d_output(), rows, {}, n_heads, true);
        });
  }
  return tape.record_in_place("rotary", x, {angles.table, angles.row}, [n_heads](BackwardContext& context) {
    dispatch_kernel(context.stream(), rotary_cpu, rotary_gpu, context.d_output(), context.saved(0), context.saved(1),
                    n_heads, true);
  });
}

}  // namespace furlong::ops
