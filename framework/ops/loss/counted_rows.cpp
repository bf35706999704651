#include "framework/ops/loss/counted_rows.h"

#include <cstring>

#include "framework/primitives/arithmetic.h"
#include "framework/simd/integers.h"

namespace furlong::ops {
namespace {

char* row_of(const Tensor& values, std::int64_t row) {
  return static_cast<char*>(values.address()) + row * values.extent(1) * size_of(values.dtype());
}

}  // namespace

CountedRows::CountedRows(const Tensor& targets, std::int64_t d, std::int64_t vocabulary) : count_(targets.elements()) {
  if (!targets.device().is_cpu()) return;
  std::vector<std::int64_t> counted;
  for (std::int64_t row = 0; row < count_; ++row) {
    if (simd::integer_at(targets, row) >= 0) counted.push_back(row);
  }
  const std::int64_t n = std::ssize(counted);
  if (n == 0 || computed_share(static_cast<double>(n) / static_cast<double>(count_), d, vocabulary) == 1) return;
  count_ = n;
  rows_ = std::move(counted);
}

double CountedRows::computed_share(double counted, std::int64_t d, std::int64_t vocabulary) {
  const double logits = (1 - counted) * static_cast<double>(vocabulary), copies = 2 * counted * static_cast<double>(d);
  return counted <= 0.5 && logits > copies ? counted : 1;
}

Tensor CountedRows::targets(const Tensor& targets) const {
  if (all()) return targets;
  std::vector<std::int32_t> values;
  values.reserve(rows_.size());
  for (const std::int64_t row : rows_) values.push_back(simd::integer_at(targets, row));
  return Tensor::from(values, {count_});
}

Tensor CountedRows::gather(const Tensor& values, std::int64_t first, std::int64_t n) const {
  if (all()) return values.narrow(0, first, n);
  const Tensor chunk = Tensor::empty({n, values.extent(1)}, values.dtype());
  const auto bytes = static_cast<std::size_t>(values.extent(1) * size_of(values.dtype()));
  for (std::int64_t i = 0; i < n; ++i)
    std::memcpy(row_of(chunk, i), row_of(values, rows_[static_cast<std::size_t>(first + i)]), bytes);
  return chunk;
}

void CountedRows::scatter(const Tensor& chunk, const Tensor& values, std::int64_t first) const {
  const auto bytes = static_cast<std::size_t>(values.extent(1) * size_of(values.dtype()));
  for (std::int64_t i = 0; i < chunk.extent(0); ++i)
    std::memcpy(row_of(values, rows_[static_cast<std::size_t>(first + i)]), row_of(chunk, i), bytes);
}

Tensor CountedRows::all_rows(const Stream& stream, const Tensor& values, std::int64_t rows) const {
  if (all()) return values;
  const Tensor result = Tensor::empty({rows, 1}, values.dtype());
  fill(stream, result, 0.0);
  scatter(values.reshape({count_, 1}), result, 0);
  return result.reshape({rows});
}

}  // namespace furlong::ops
