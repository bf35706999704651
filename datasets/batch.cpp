#include "datasets/batch.h"

#include <algorithm>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// Pads rows of `from` values to rows of `to` values.
void widen_rows(std::vector<std::int32_t>& values, std::int64_t from, std::int64_t to, std::int32_t padding) {
  const auto rows = static_cast<std::int64_t>(values.size()) / from;
  std::vector<std::int32_t> wide(static_cast<std::size_t>(rows * to), padding);
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(values.begin() + row * from, from, wide.begin() + row * to);
  values = std::move(wide);
}

}  // namespace

std::vector<std::int32_t> real_tokens(const Batch& batch) {
  if (!batch.mask.empty()) return batch.mask;
  std::vector<std::int32_t> real(static_cast<std::size_t>(batch.batch * batch.n), 1);
  for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
    const auto begin = real.begin() + static_cast<std::ptrdiff_t>(row) * batch.n;
    std::fill(begin + batch.lengths[row], begin + batch.n, 0);
  }
  return real;
}

void widen(Batch& batch, std::int64_t n) {
  if (n == batch.n) return;
  require(n > batch.n && batch.documents.empty(), "rows of {} cannot become rows of {}", batch.n, n);
  if (batch.mask.empty()) batch.mask = real_tokens(batch);
  widen_rows(batch.inputs, batch.n, n, 0);
  widen_rows(batch.targets, batch.n, n, ignored_target);
  widen_rows(batch.mask, batch.n, n, 0);
  batch.n = n;
}

void append(Batch& batch, Batch more) {
  if (batch.batch == 0) {
    batch = std::move(more);
    return;
  }
  require(batch.fresh.empty() && more.fresh.empty(), "batches of streams cannot be joined");
  const std::int64_t n = std::max(batch.n, more.n);
  widen(batch, n);
  widen(more, n);
  if (batch.mask.empty() != more.mask.empty()) {
    Batch& without = batch.mask.empty() ? batch : more;
    without.mask = real_tokens(without);
  }
  if (batch.lengths.empty() != more.lengths.empty()) {
    Batch& without = batch.lengths.empty() ? batch : more;
    without.lengths.assign(static_cast<std::size_t>(without.batch), static_cast<std::int32_t>(n));
  }
  batch.batch += more.batch;
  batch.n_targets += more.n_targets;
  batch.n_tokens += more.n_tokens;
  for (const auto part : {&Batch::inputs, &Batch::targets, &Batch::mask, &Batch::lengths, &Batch::documents,
                          &Batch::labels, &Batch::values})
    (batch.*part).insert((batch.*part).end(), (more.*part).begin(), (more.*part).end());
}

}  // namespace furlong
