#pragma once
// First and second moments of queries and keys per head. Centering, scaling and FAVOR++ compute their constants from
// them.
#include "framework/core/device.h"
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Returns the number of statistics for a head of width d: token count, Σ q, Σ k, Σ q², Σ k² (the last four per
/// dimension).
inline std::int64_t head_statistics_width(std::int64_t d) { return 1 + 4 * d; }

/// Adds sums over the tokens of query [batch, n, n_heads·d] and key [batch, n, n_kv_heads·d] to `statistics`
/// [n_heads, 1 + 4 d], float32 or float64. Query and key are views with contiguous rows. Query head h uses key head
/// h / (n_heads / n_kv_heads). `kept`, if defined, is int32 [batch, n]; tokens with 0 are left out.
///
/// A head whose sums are not finite is left unchanged, so that a non-finite batch does not spoil the constants; the
/// failure shows in the loss. Results are bitwise equal for any number of threads. Throws ContractError if shapes do
/// not match.
void add_head_statistics(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& kept,
                         std::int64_t n_heads, std::int64_t n_kv_heads, const Tensor& statistics);

}  // namespace furlong::ops
