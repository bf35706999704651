#pragma once
// The documents that linear attention processes one after another, on the CPU.
#include <vector>

#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {

/// Queries and keys of one document, or of the whole row without a document mask.
struct LinearAttentionRange {
  std::int64_t first_query, end_query, first_key, end_key;

  std::int64_t n_query() const { return end_query - first_query; }
  std::int64_t n_key() const { return end_key - first_key; }
};

/// Returns the ranges of row b in the order of the walk. With `reversed`, tokens are numbered from the row's end.
inline std::vector<LinearAttentionRange> linear_attention_ranges(const LinearAttentionArguments& arguments,
                                                                 std::int64_t b, bool reversed) {
  const std::int64_t n_query = arguments.query.extent(1), n_key = arguments.key.extent(1);
  if (!arguments.mask.documents.defined()) return {{0, n_query, 0, n_key}};
  const std::int32_t* ids = arguments.mask.documents.data<std::int32_t>() + b * n_key;
  std::vector<LinearAttentionRange> ranges;
  for (std::int64_t start = 0, i = 1; i <= n_key; ++i) {
    if (i < n_key && ids[i] == ids[start]) continue;
    const std::int64_t first = reversed ? n_key - i : start, end = reversed ? n_key - start : i;
    ranges.push_back({first, end, first, end});
    start = i;
  }
  return ranges;
}

}  // namespace furlong::ops
