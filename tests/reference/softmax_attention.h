#pragma once
// Softmax attention from its definition, in float64, with plain loops.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

namespace furlong::reference {

struct SoftmaxAttentionCase {
  std::int64_t batch = 1, n_query = 1, n_key = 1, n_heads = 1, n_kv_heads = 1, d_key = 1, d_value = 1;
  bool causal = true;
  std::int64_t first_query_position = 0;
  double scale = 0;                       // 0: d_key^(-1/2)
  std::int64_t window = 0;                // 0: none
  std::vector<std::int32_t> keys{};       // [batch, n_key], 0 masks; empty keeps all
  std::vector<std::int32_t> documents{};  // [batch, n_key], runs of equal numbers; empty: one

  /// Returns whether query i of sequence b attends to key j.
  bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t distance = first_query_position + i - j;
    if (causal && distance < 0) return false;
    if (window > 0 && std::abs(distance) >= window) return false;
    if (!keys.empty() && keys[static_cast<std::size_t>(b * n_key + j)] == 0) return false;
    for (std::int64_t x = std::min(i, j) + 1; !documents.empty() && x <= std::max(i, j); ++x) {
      if (documents[static_cast<std::size_t>(b * n_key + x)] != documents[static_cast<std::size_t>(b * n_key + x - 1)])
        return false;
    }
    return true;
  }
  std::vector<std::int64_t> seen(std::int64_t b, std::int64_t i) const {
    std::vector<std::int64_t> result;
    for (std::int64_t j = 0; j < n_key; ++j) {
      if (sees(b, i, j)) result.push_back(j);
    }
    return result;
  }
};

/// For messages of failed tests.
inline void PrintTo(const SoftmaxAttentionCase& c, std::ostream* out) {
  *out << "batch " << c.batch << ", n " << c.n_query << " over " << c.n_key << ", heads " << c.n_heads << " over "
       << c.n_kv_heads << ", d " << c.d_key << " and " << c.d_value
       << (c.causal ? ", causal from " : ", not causal, from ") << c.first_query_position << ", scale " << c.scale
       << ", window " << c.window << (c.keys.empty() ? "" : ", masked keys")
       << (c.documents.empty() ? "" : ", documents");
}

struct SoftmaxAttentionResult {
  std::vector<double> output;       // [batch, n_query, n_heads, d_value]
  std::vector<double> log_sum_exp;  // [batch, n_heads, n_query]
};

/// A query without visible keys has output 0 and log_sum_exp -infinity.
/// query [batch, n_query, n_heads, d_key], key and value [batch, n_key, n_kv_heads, d]; row-major.
inline SoftmaxAttentionResult softmax_attention(const SoftmaxAttentionCase& c, const std::vector<double>& query,
                                                const std::vector<double>& key, const std::vector<double>& value) {
  SoftmaxAttentionResult result;
  result.output.assign(static_cast<std::size_t>(c.batch * c.n_query * c.n_heads * c.d_value), 0.0);
  result.log_sum_exp.assign(static_cast<std::size_t>(c.batch * c.n_heads * c.n_query), 0.0);
  const double scale = c.scale != 0 ? c.scale : 1.0 / std::sqrt(static_cast<double>(c.d_key));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.n_heads; ++h) {
      const std::int64_t g = h / (c.n_heads / c.n_kv_heads);
      for (std::int64_t i = 0; i < c.n_query; ++i) {
        const double* q = query.data() + ((b * c.n_query + i) * c.n_heads + h) * c.d_key;
        const std::vector<std::int64_t> seen = c.seen(b, i);
        std::vector<double> score;
        double maximum = -std::numeric_limits<double>::infinity();
        for (const std::int64_t j : seen) {
          const double* k = key.data() + ((b * c.n_key + j) * c.n_kv_heads + g) * c.d_key;
          double sum = 0;
          for (std::int64_t f = 0; f < c.d_key; ++f) sum += q[f] * k[f];
          score.push_back(scale * sum);
          maximum = std::max(maximum, score.back());
        }
        double denominator = 0;
        for (double& s : score) denominator += s = std::exp(s - maximum);
        double* out = result.output.data() + ((b * c.n_query + i) * c.n_heads + h) * c.d_value;
        for (std::size_t j = 0; j < score.size(); ++j) {
          const double* v = value.data() + ((b * c.n_key + seen[j]) * c.n_kv_heads + g) * c.d_value;
          for (std::int64_t f = 0; f < c.d_value; ++f) out[f] += score[j] / denominator * v[f];
        }
        result.log_sum_exp[static_cast<std::size_t>((b * c.n_heads + h) * c.n_query + i)] =
            maximum + std::log(denominator);
      }
    }
  }
  return result;
}

struct SoftmaxAttentionGradient {
  std::vector<double> d_query, d_key, d_value;  // in the shapes of query, key and value
};

/// D = dO·O is computed from `stored_output` if given, as in a backward that stores only a rounded output; otherwise D
/// is exact. With weights p, D = Σ_j p_j (dO·v_j) and dS_j = p_j (dO·v_j - D): dQ = scale Σ_j dS_j k_j, dK_j = scale
/// Σ_i dS_ij q_i, dV_j = Σ_i p_ij dO_i.
inline SoftmaxAttentionGradient softmax_attention_gradient(const SoftmaxAttentionCase& c,
                                                           const std::vector<double>& query,
                                                           const std::vector<double>& key,
                                                           const std::vector<double>& value,
                                                           const std::vector<double>& d_output,
                                                           const std::vector<double>& stored_output = {}) {
  const SoftmaxAttentionResult forward = softmax_attention(c, query, key, value);
  SoftmaxAttentionGradient result{std::vector<double>(query.size()), std::vector<double>(key.size()),
                                  std::vector<double>(value.size())};
  const double scale = c.scale != 0 ? c.scale : 1.0 / std::sqrt(static_cast<double>(c.d_key));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.n_heads; ++h) {
      const std::int64_t g = h / (c.n_heads / c.n_kv_heads);
      for (std::int64_t i = 0; i < c.n_query; ++i) {
        const std::int64_t q_row = ((b * c.n_query + i) * c.n_heads + h) * c.d_key,
                           o_row = ((b * c.n_query + i) * c.n_heads + h) * c.d_value;
        const double log_sum_exp = forward.log_sum_exp[static_cast<std::size_t>((b * c.n_heads + h) * c.n_query + i)];
        const std::vector<std::int64_t> seen = c.seen(b, i);
        std::vector<double> p, d_p;
        double weighted = 0;
        for (const std::int64_t j : seen) {
          const std::int64_t k_row = ((b * c.n_key + j) * c.n_kv_heads + g) * c.d_key,
                             v_row = ((b * c.n_key + j) * c.n_kv_heads + g) * c.d_value;
          double score = 0, product = 0;
          for (std::int64_t f = 0; f < c.d_key; ++f)
            score += query[static_cast<std::size_t>(q_row + f)] * key[static_cast<std::size_t>(k_row + f)];
          for (std::int64_t f = 0; f < c.d_value; ++f)
            product += d_output[static_cast<std::size_t>(o_row + f)] * value[static_cast<std::size_t>(v_row + f)];
          p.push_back(std::exp(scale * score - log_sum_exp));
          d_p.push_back(product);
          weighted += p.back() * product;
        }
        if (!stored_output.empty()) {
          weighted = 0;
          for (std::int64_t f = 0; f < c.d_value; ++f)
            weighted +=
                d_output[static_cast<std::size_t>(o_row + f)] * stored_output[static_cast<std::size_t>(o_row + f)];
        }
        for (std::size_t j = 0; j < p.size(); ++j) {
          const std::int64_t key_row = (b * c.n_key + seen[j]) * c.n_kv_heads + g;
          const double d_score = scale * p[j] * (d_p[j] - weighted);
          for (std::int64_t f = 0; f < c.d_key; ++f) {
            result.d_query[static_cast<std::size_t>(q_row + f)] +=
                d_score * key[static_cast<std::size_t>(key_row * c.d_key + f)];
            result.d_key[static_cast<std::size_t>(key_row * c.d_key + f)] +=
                d_score * query[static_cast<std::size_t>(q_row + f)];
          }
          for (std::int64_t f = 0; f < c.d_value; ++f) {
            result.d_value[static_cast<std::size_t>(key_row * c.d_value + f)] +=
                p[j] * d_output[static_cast<std::size_t>(o_row + f)];
          }
        }
      }
    }
  }
  return result;
}

}  // namespace furlong::reference
