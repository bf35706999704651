#pragma once
// How linear attention on CPUs visits keys: which keys a query meets pair by pair, and in how many sweeps.
#include <algorithm>
#include <cstdint>

#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {

/// The keys of a block of near keys that each query of a chunk meets pair by pair.
struct NearPairs {
  std::int64_t offset = 0;   // position of query 0 minus the position of near key 0
  std::int64_t columns = 0;  // number of near keys
  bool causal = true;
  std::int64_t window = 0, softmax_window = 0;
  bool own_key = true;   // causal: whether a query attends to the key at its own position
  bool features = true;  // whether any pair has feature weights, so that the near keys' features are computed

  struct Row {
    std::int64_t first, soft, end;  // feature weights for [first, soft), exact softmax weights for [soft, end)
  };
  Row row(std::int64_t i) const {
    const std::int64_t at = offset + i;
    std::int64_t end = columns;
    if (causal)
      end = own_key ? at + 1 : at;
    else if (window > 0)
      end = at + window;
    end = std::clamp<std::int64_t>(end, 0, columns);
    const std::int64_t first = window > 0 ? std::clamp<std::int64_t>(at - window + 1, 0, end) : 0;
    const std::int64_t soft = softmax_window > 0 ? std::clamp<std::int64_t>(at - softmax_window + 1, first, end) : end;
    return {first, soft, end};
  }
  /// Whether any of the first `rows` queries has pairs with feature weights. One query, in decoding, has none: its
  /// softmax window covers all near keys.
  bool any_features(std::int64_t rows) const {
    const Row last = row(rows - 1);  // soft - first is largest there
    return columns > 0 && (softmax_window == 0 || last.soft > last.first);
  }
};

/// Keys that one sweep visits: `only` visits all visible keys. Otherwise `first` visits those up to each query's own
/// position, and `second` those after it.
enum class Sweep : std::uint8_t { only, first, second };

/// What the first of two sweeps stores for each query: Σ_j w_ij v_j [ld_v], Σ_j w_ij and its magnitude, with its own
/// stabilizer.
template <class T>
struct SweptRows {
  T *sum, *top, *total, *magnitude;

  static SweptRows of(T* memory, std::int64_t n, std::int64_t ld_v) {
    const std::int64_t line = LinearAttentionSizes::padded(n);
    T* const numbers = memory + n * ld_v;
    return {memory, numbers, numbers + line, numbers + 2 * line};
  }
  SweptRows from(std::int64_t query, std::int64_t ld_v) const {
    return {sum + query * ld_v, top + query, total + query, magnitude + query};
  }
};

}  // namespace furlong::ops
