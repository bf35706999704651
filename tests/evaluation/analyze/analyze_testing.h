#pragma once
// Queries, keys and values for tests of furlong analyze attention.
#include "evaluation/analyze/analyze_attention.h"
#include "framework/core/random.h"

namespace furlong::testing {

inline std::vector<double> normal_values(std::int64_t count, const char* name, double deviation) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = deviation * random_normal({5, 0, random_stream(name)}, i);
  return values;
}

/// Gaussian queries, keys and values, the same in each call.
inline AttentionSample sample_of(std::int64_t batch, std::int64_t n, std::int64_t heads, std::int64_t kv_heads,
                                 std::int64_t d, double deviation = 1) {
  AttentionSample sample;
  sample.n_heads = heads;
  sample.n_kv_heads = kv_heads;
  sample.query = Tensor::from(normal_values(batch * n * heads * d, "q", deviation), {batch, n, heads * d});
  sample.key = Tensor::from(normal_values(batch * n * kv_heads * d, "k", deviation), {batch, n, kv_heads * d});
  sample.value = Tensor::from(normal_values(batch * n * kv_heads * d, "v", 1), {batch, n, kv_heads * d});
  return sample;
}

}  // namespace furlong::testing
