#pragma once
// First and second moments of queries and keys, head by head: what centring, scaling and FAVOR++ take their constants
// from.
#include "framework/core/device.h"
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Numbers that head_statistics keeps for a head of width d: tokens, Σ q, Σ k, Σ q², Σ k² (the last four for each
/// dimension).
inline std::int64_t head_statistics_width(std::int64_t d) { return 1 + 4 * d; }

/// Adds the sums over the tokens of query [batch, n, n_heads·d] and key [batch, n, n_kv_heads·d], views with contiguous
/// rows, to `statistics` [n_heads, 1 + 4 d], float32 or float64; query head h goes with key head h / (n_heads /
/// n_kv_heads). `kept`, where defined, int32 [batch, n], leaves out the tokens that it marks with 0. A head whose sums
/// are not finite is left as it was: the fault shows in the loss, and must not stay in the constants. The same bits for
/// any number of threads. Throws ContractError on shapes that do not fit.
void add_head_statistics(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& kept,
                         std::int64_t n_heads, std::int64_t n_kv_heads, const Tensor& statistics);

}  // namespace furlong::ops
