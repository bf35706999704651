#pragma once
// Linear attention with positive features (Katharopoulos et al. 2020, "Transformers are RNNs"; Choromanski et al. 2021, "Rethinking
// Attention with Performers"), in log-features and without any epsilon:
//   output_i = sum_j w_ij v_j / sum_j w_ij,  w_ij = sum_f exp(log_feature_f(q_i) + log_feature_f(k_j)),  j <= i when causal.
// Each query row subtracts its own maximum; the state keeps, per feature, a running maximum over the keys of earlier chunks; inside a chunk
// the pair's weight is put together from a small product and both rows' maxima; both parts meet under one maximum per query. So nothing
// overflows, the denominator is at least 1, and a later token cannot change an earlier output by a bit (docs/numerics.md).
// Features are computed tile by tile; neither direction stores an n × m tensor, and the state exists once per head.
#include <string>
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

enum class FeatureMap : std::uint8_t {
  elu1,           ///< elu(x) + 1, element by element (Katharopoulos et al. 2020, equation 7); m = d
  favor_positive  ///< exp(ω·x' - |x'|²/2), x' = x d^(-1/4) (Choromanski et al. 2021, lemma 1); needs directions ω
};
/// One row for each feature map: the table that names, checks and tests loop over.
struct FeatureMapInfo {
  FeatureMap map;
  const char* name;
  bool needs_directions;
};
const std::vector<FeatureMapInfo>& feature_maps();
/// Throws UserError naming the known ones.
const FeatureMapInfo& feature_map_info(const std::string& name);
const FeatureMapInfo& feature_map_info(FeatureMap map);

struct LinearAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  FeatureMap feature_map = FeatureMap::favor_positive;
  bool causal = true;
  std::int64_t chunk_size = 64;  ///< tokens a tile; changes speed, and results only by rounding
};

/// What a causal head has seen: enough to go on with later tokens as if in one sequence. float32 (float64 in tests) whatever the storage
/// type.
struct LinearAttentionState {
  Tensor sum;         ///< [batch, n_heads, features, d_value]: Σ_j exp(log_feature(k_j) - maximum) v_j
  Tensor normalizer;  ///< [batch, n_heads, features]: the same sum over 1
  Tensor maximum;     ///< [batch, n_heads, features]: the running maximum of log_feature(k_j)
  /// A state that has seen nothing.
  static LinearAttentionState empty(std::int64_t batch, std::int64_t n_heads, std::int64_t features, std::int64_t d_value, DType dtype,
                                    const Device& device);
};

/// query [batch, n, n_heads·d], key [batch, n_key, n_kv_heads·d], value [batch, n_key, n_kv_heads·d_value]: views with contiguous rows
/// (column ranges of one tensor) are welcome. directions: [m, d] for all heads or [n_heads, m, d] in float32 (float64 for float64 inputs),
/// undefined for elu1. Returns [batch, n, n_heads·d_value]. Throws ContractError on shapes that do not fit; causal needs n = n_key.
Variable linear_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value, const Tensor& directions,
                          const LinearAttentionOptions& options);

/// Forward alone, causal, continuing from `state` and leaving it advanced by these tokens: a prompt in parallel, or one token at a time.
Tensor linear_attention_continue(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& directions, const LinearAttentionOptions& options, LinearAttentionState& state);

}  // namespace furlong::ops
