#pragma once
// Linear attention by its definition, in float64, pair by pair, for one head. No tricks but the one maximum per query that exp needs.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace furlong::reference {

using Matrix = std::vector<double>;  // row-major

/// log φ_f(x) of a row x [d]: all m of them.
using LogFeatures = std::function<std::vector<double>(const double* x, bool is_key)>;

inline LogFeatures elu1(std::int64_t d) {
  return [d](const double* x, bool) {
    std::vector<double> features(static_cast<std::size_t>(d));
    for (std::int64_t f = 0; f < d; ++f) features[static_cast<std::size_t>(f)] = std::log(x[f] > 0 ? x[f] + 1 : std::exp(x[f]));
    return features;
  };
}

inline LogFeatures favor_positive(std::int64_t d, const Matrix& omega) {
  return [d, omega](const double* x, bool is_key) {
    const std::int64_t m = static_cast<std::int64_t>(omega.size()) / d;
    const double c = std::pow(static_cast<double>(d), -0.25);
    std::vector<double> features(static_cast<std::size_t>(m));
    double square = 0;
    for (std::int64_t i = 0; i < d; ++i) square += c * x[i] * c * x[i];
    for (std::int64_t f = 0; f < m; ++f) {
      double dot = 0;
      for (std::int64_t i = 0; i < d; ++i) dot += omega[static_cast<std::size_t>(f * d + i)] * c * x[i];
      features[static_cast<std::size_t>(f)] = dot - (is_key ? square / 2 : 0);
    }
    return features;
  };
}

/// query [n, d], key [n_key, d], value [n_key, d_value] -> [n, d_value].
inline Matrix linear_attention(const Matrix& query, const Matrix& key, const Matrix& value, std::int64_t n, std::int64_t n_key,
                               std::int64_t d, std::int64_t d_value, bool causal, const LogFeatures& log_features) {
  std::vector<std::vector<double>> q, k;
  for (std::int64_t i = 0; i < n; ++i) q.push_back(log_features(query.data() + i * d, false));
  for (std::int64_t j = 0; j < n_key; ++j) k.push_back(log_features(key.data() + j * d, true));
  Matrix output(static_cast<std::size_t>(n * d_value), 0.0);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t visible = causal ? i + 1 : n_key;
    std::vector<double> log_weight(static_cast<std::size_t>(visible));
    double top = -HUGE_VAL;
    for (std::int64_t j = 0; j < visible; ++j) {
      const auto& a = q[static_cast<std::size_t>(i)];
      const auto& b = k[static_cast<std::size_t>(j)];
      double best = -HUGE_VAL, sum = 0;
      for (std::size_t f = 0; f < a.size(); ++f) best = std::max(best, a[f] + b[f]);
      for (std::size_t f = 0; f < a.size(); ++f) sum += std::exp(a[f] + b[f] - best);
      log_weight[static_cast<std::size_t>(j)] = best + std::log(sum);
      top = std::max(top, log_weight[static_cast<std::size_t>(j)]);
    }
    double total = 0;
    for (std::int64_t j = 0; j < visible; ++j) {
      const double w = std::exp(log_weight[static_cast<std::size_t>(j)] - top);
      total += w;
      for (std::int64_t c = 0; c < d_value; ++c)
        output[static_cast<std::size_t>(i * d_value + c)] += w * value[static_cast<std::size_t>(j * d_value + c)];
    }
    for (std::int64_t c = 0; c < d_value; ++c) output[static_cast<std::size_t>(i * d_value + c)] /= total;
  }
  return output;
}

}  // namespace furlong::reference
