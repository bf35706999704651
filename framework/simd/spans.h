#pragma once
// Element-wise loops over tensors of one shape with any outer strides.
#include <array>
#include <cstddef>

#include "framework/core/parallel.h"
#include "framework/simd/rows.h"

namespace furlong::simd {

/// Below this number of elements a second thread costs more than it saves.
constexpr std::int64_t elementwise_grain = 1 << 15;

/// Calls body(first, n, offsets) on several threads for runs of n elements that are consecutive in every tensor.
/// `first` is the run's row-major index; offsets[i] is its element offset in tensors[i]. All tensors have the same
/// shape and contiguous rows.
template <std::size_t count, class Body>
void parallel_spans(const std::array<const Tensor*, count>& tensors, const Body& body) {
  bool contiguous = true;
  for (const Tensor* tensor : tensors) contiguous = contiguous && tensor->is_contiguous();
  if (contiguous) {
    parallel_ranges(tensors[0]->elements(), elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::int64_t, count> offsets;
      offsets.fill(begin);
      body(begin, end - begin, offsets);
    });
    return;
  }
  const RowView view = row_view(*tensors[0]);
  const std::int64_t grain = elementwise_grain / (view.columns > 0 ? view.columns : 1);
  parallel_ranges(view.rows, grain > 0 ? grain : 1, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::int64_t, count> offsets;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::size_t i = 0; i < count; ++i) offsets[i] = row_offset(*tensors[i], row);
      body(row * view.columns, view.columns, offsets);
    }
  });
}

}  // namespace furlong::simd
