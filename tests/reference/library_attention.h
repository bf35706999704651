#pragma once
// Linear attention as in performer-pytorch and pytorch-fast-transformers, including epsilons and stabilizers, in
// float64, pair by pair, for one head. The table in docs/internals/numerics.md compares their definitions with ours.
#include "tests/reference/linear_attention.h"

namespace furlong::reference {

struct LibraryAttentionCase {
  FeatureMapCase features;
  std::int64_t n_query = 1, n_key = 1, d_value = 1;
  bool causal = true;
  double input_scale = 1;          ///< of q and k, before the feature map
  double feature_epsilon = 0;      ///< φ = (f(x) + feature_epsilon) / √m
  double sum_epsilon = 0;          ///< initial value of every Σ_j φ_f(k_j)
  double denominator_epsilon = 0;  ///< added to every denominator
  bool subtract_maximum = false;   ///< subtract the maximum exponent: the query's own, or that of all keys
  bool subtract_norm = false;      ///< subtract the largest |x'|² of the sequence from the exponents
  bool mask_features = true;       ///< a masked key is excluded from both sums; otherwise only its value is zero
  std::vector<int> mask{};         ///< [n_key], empty: none
};

namespace library_attention {

inline double square_norm(const LibraryAttentionCase& c, const double* x) {
  return inner(x, x, c.features.d) / std::sqrt(static_cast<double>(c.features.d));
}

/// φ of n rows.
inline std::vector<std::vector<double>> features(const LibraryAttentionCase& c, Matrix x, std::int64_t n, bool is_key) {
  for (double& value : x) value *= c.input_scale;
  const bool logarithms = ops::feature_map_info(c.features.map).form == ops::FeatureForm::logarithms;
  std::vector<std::vector<double>> rows;
  std::vector<double> maxima;
  double norm = -HUGE_VAL;
  for (std::int64_t i = 0; i < n; ++i) {
    const double* at = x.data() + i * c.features.d;
    // A key's row: its features contain all of φ except the constant factor.
    rows.push_back(feature_row(c.features, at, true).features);
    maxima.push_back(*std::max_element(rows.back().begin(), rows.back().end()) + square_norm(c, at) / 2);
    norm = std::max(norm, square_norm(c, at));
  }
  const double top = *std::max_element(maxima.begin(), maxima.end());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double shift = c.subtract_maximum ? (is_key ? top : maxima[i]) : c.subtract_norm ? norm : 0;
    for (double& value : rows[i]) {
      value = (logarithms ? std::exp(value - shift) : value) + c.feature_epsilon;
      if (logarithms && c.features.n_projections > 0) value /= std::sqrt(static_cast<double>(rows[i].size()));
    }
  }
  return rows;
}

}  // namespace library_attention

/// query [n_query, d], key [n_key, d], value [n_key, d_value] -> [n_query, d_value].
inline Matrix library_attention_output(const LibraryAttentionCase& c, const Matrix& query, const Matrix& key,
                                       const Matrix& value) {
  const auto phi_q = library_attention::features(c, query, c.n_query, false),
             phi_k = library_attention::features(c, key, c.n_key, true);
  Matrix output(static_cast<std::size_t>(c.n_query * c.d_value), 0.0);
  for (std::int64_t i = 0; i < c.n_query; ++i) {
    const auto& q = phi_q[static_cast<std::size_t>(i)];
    double total = c.denominator_epsilon;
    for (const double feature : q) total += feature * c.sum_epsilon;
    double* out = output.data() + i * c.d_value;
    for (std::int64_t j = 0; j < c.n_key && !(c.causal && j > i); ++j) {
      const bool masked = !c.mask.empty() && c.mask[static_cast<std::size_t>(j)] == 0;
      if (masked && c.mask_features) continue;
      const auto& k = phi_k[static_cast<std::size_t>(j)];
      const double weight = inner(q.data(), k.data(), static_cast<std::int64_t>(q.size()));
      total += weight;
      for (std::int64_t f = 0; f < c.d_value && !masked; ++f)
        out[f] += weight * value[static_cast<std::size_t>(j * c.d_value + f)];
    }
    for (std::int64_t f = 0; f < c.d_value; ++f) out[f] /= total;
  }
  return output;
}

}  // namespace furlong::reference
