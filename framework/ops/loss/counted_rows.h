#pragma once
#include <vector>

#include "framework/core/tensor.h"

namespace furlong::ops {

/// The rows of a batch that a loss computes: those that count, on the CPU, if they are at most half (masked tokens) and
/// the logits left out are more than the values copied. Otherwise all rows: a GPU would have to report to the host how
/// many count.
class CountedRows {
 public:
  /// All of `rows` rows.
  explicit CountedRows(std::int64_t rows) : count_(rows) {}
  /// `targets`: int32 in any shape with contiguous rows, one for each row; -1 ignores the row. Each row has d values
  /// and `vocabulary` logits.
  CountedRows(const Tensor& targets, std::int64_t d, std::int64_t vocabulary);

  /// Returns the share of rows that the CPU computes if the share `counted` of them counts: `counted` or 1.
  static double computed_share(double counted, std::int64_t d, std::int64_t vocabulary);

  bool all() const { return rows_.empty(); }
  std::int64_t count() const { return count_; }
  /// Returns these rows' targets, int32, count() of them.
  Tensor targets(const Tensor& targets) const;
  /// Returns `n` of these rows from the `first` on, [n, d], of values [rows, d]: a view of all rows, otherwise a copy.
  Tensor gather(const Tensor& values, std::int64_t first, std::int64_t n) const;
  /// Writes chunk [n, d] to these rows of values [rows, d], from the `first` on. Only if not all().
  void scatter(const Tensor& chunk, const Tensor& values, std::int64_t first) const;

  /// Returns values [count()] of these rows as values of all `rows` rows: the others are 0.
  Tensor all_rows(const Stream& stream, const Tensor& values, std::int64_t rows) const;

 private:
  std::int64_t count_;
  std::vector<std::int64_t> rows_;  // in order; empty: all
};

}  // namespace furlong::ops
