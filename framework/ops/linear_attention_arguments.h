#pragma once
#include "framework/ops/linear_attention.h"

namespace furlong::ops {

/// Extents of the tiles that one thread works on, and the scratch they take. Rows are padded to 16 elements.
struct LinearAttentionSizes {
  std::int64_t chunk = 0, d = 0, d_value = 0, m = 0;
  std::int64_t ld_d = 0, ld_v = 0, ld_m = 0, ld_c = 0;
  void finish() {
    const auto padded = [](std::int64_t n) { return (n + 15) / 16 * 16; };
    ld_d = padded(d);
    ld_v = padded(d_value);
    ld_m = padded(m);
    ld_c = padded(chunk);
  }
  /// Elements of a tile's scratch: O(m · d_value + chunk · (m + d)), whatever the length of the sequence.
  std::int64_t forward_elements() const {
    const std::int64_t state = m * ld_v + 2 * ld_m;
    return state + chunk * (2 * ld_d + 2 * ld_v + 5 * ld_m + 2 * ld_c) + ld_m * ld_c + 8 * ld_c;
  }
  /// The same in backward, and the gradients of one key-value head: sums over chunks and query heads need all its rows.
  std::int64_t backward_elements(std::int64_t n_query, std::int64_t n_key) const {
    return backward_tile_elements() + n_query * ld_d + n_key * (ld_d + ld_v);
  }
  std::int64_t backward_tile_elements() const {
    return forward_elements() + ld_v * ld_m + chunk * (2 * ld_v + ld_d + 3 * ld_m + 2 * ld_c) + ld_v * ld_c + 4 * ld_c;
  }
};

/// What both engines' bodies are given; checked before.
struct LinearAttentionArguments {
  LinearAttentionOptions options;
  std::int64_t features = 0;         // m
  Tensor query, key, value, output;  // 4-D views [batch, n, heads, d]
  Tensor directions;                 // [m, d] or [n_heads, m, d]; undefined without
  Tensor top,
      inverse_denominator;  // [batch, n_heads, n], compute dtype: the stabiliser and 1 / denominator of each query; undefined when not kept
  LinearAttentionState* state = nullptr;
  LinearAttentionSizes sizes;
  Tensor directions_transposed;  // [1 or n_heads, d, ld_m], compute dtype, to be written; undefined without directions
  Tensor scratch;                // [threads, elements], compute dtype
};

struct LinearAttentionGradients {
  Tensor d_output;                         // [batch, n, n_heads, d_value]
  GradientTarget d_query, d_key, d_value;  // 4-D views like their values
};

void linear_attention_forward_cpu(const LinearAttentionArguments& arguments);
void linear_attention_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients);

}  // namespace furlong::ops
