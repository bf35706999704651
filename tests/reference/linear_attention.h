#pragma once
// Linear attention by its definition, in float64, pair by pair, for one head. The only numerical device is the maximum
// per query that exp needs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/reference/feature_maps.h"

namespace furlong::reference {

using Matrix = std::vector<double>;  // row-major

struct LinearAttentionCase {
  FeatureMapCase features;
  std::int64_t n_query = 1, n_key = 1, d_value = 1;
  bool causal = true;
  std::int64_t window = 0, softmax_window = 0;
  double gate = 0;
  bool rms = false;
  bool rotate_numerator = false;
  double rotary_base = 10000;
  Matrix query_center{}, key_center{}, scaling{};  // [d], empty: none
  std::vector<int> mask{}, documents{};            // [n_key], empty: none
};

struct Weight {
  double log, sign;  // log -inf: weight 0
};

/// log |φ(q)·φ(k)| and its sign, without the query's `row_log`.
inline Weight feature_weight(const FeatureMapCase& c, const FeatureRow& q, const FeatureRow& k) {
  if (ops::feature_map_info(c.map).form == ops::FeatureForm::logarithms) {
    double top = -HUGE_VAL, sum = 0;
    for (std::size_t f = 0; f < q.features.size(); ++f) top = std::max(top, q.features[f] + k.features[f]);
    for (std::size_t f = 0; f < q.features.size(); ++f) sum += std::exp(q.features[f] + k.features[f] - top);
    return {top + std::log(sum), 1};
  }
  double sum = 0;
  for (std::size_t f = 0; f < q.features.size(); ++f) sum += q.features[f] * k.features[f];
  return {std::log(std::fabs(sum)) + k.row_log, sum < 0 ? -1.0 : 1.0};
}

/// Cosines and sines of distance · base^(-2f/m) for the pairs of m features, at distances from -(n_query - 1) to
/// n_key - 1.
struct Rotations {
  std::int64_t n_query = 0, half = 0;
  std::vector<double> cosines, sines;

  Rotations(const LinearAttentionCase& c, std::size_t m) : n_query(c.n_query), half(static_cast<std::int64_t>(m / 2)) {
    for (std::int64_t distance = 1 - c.n_query; distance < c.n_key; ++distance) {
      for (std::int64_t f = 0; f < half; ++f) {
        const double angle = static_cast<double>(distance) *
                             std::pow(c.rotary_base, -2 * static_cast<double>(f) / static_cast<double>(m));
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
  }
  std::size_t row(std::int64_t distance) const { return static_cast<std::size_t>((distance + n_query - 1) * half); }
};

/// feature_weight of φ(q) · R φ(k), where R rotates features (f, f + ⌊m/2⌋): R_i φ(q) · R_j φ(k) for distance j - i.
inline Weight rotated_weight(const LinearAttentionCase& c, const FeatureRow& q, const FeatureRow& k,
                             const Rotations& rotations, std::int64_t distance) {
  const bool logarithms = ops::feature_map_info(c.features.map).form == ops::FeatureForm::logarithms;
  std::vector<double> x = q.features, y = k.features;
  double shift = k.row_log;
  for (auto* row : {&x, &y}) {
    if (!logarithms) continue;
    const double top = *std::max_element(row->begin(), row->end());
    for (double& value : *row) value = std::exp(value - top);
    shift += top;
  }
  const std::size_t m = x.size(), half = m / 2, at = rotations.row(distance);
  double sum = m % 2 != 0 ? x[m - 1] * y[m - 1] : 0;
  for (std::size_t f = 0; f < half; ++f) {
    const double cosine = rotations.cosines[at + f], sine = rotations.sines[at + f];
    sum += x[f] * (y[f] * cosine - y[half + f] * sine) + x[half + f] * (y[f] * sine + y[half + f] * cosine);
  }
  return {std::log(std::fabs(sum)) + shift, sum < 0 ? -1.0 : 1.0};
}

/// Returns whether query i attends to key j.
inline bool visible(const LinearAttentionCase& c, std::int64_t i, std::int64_t j) {
  const auto at = [](const std::vector<int>& values, std::int64_t index) {
    return values[static_cast<std::size_t>(index)];
  };
  if (c.causal && j > i) return false;
  if (c.window > 0 && std::abs(i - j) >= c.window) return false;
  if (!c.mask.empty() && at(c.mask, j) == 0) return false;
  return c.documents.empty() ||
         at(c.documents, i) == at(c.documents, j);  // runs of equal numbers; the tests repeat none
}

/// query [n_query, d], key [n_key, d], value [n_key, d_value] -> [n_query, d_value].
inline Matrix linear_attention(const LinearAttentionCase& c, const Matrix& query, const Matrix& key,
                               const Matrix& value) {
  const std::int64_t d = c.features.d, width = c.d_value;
  const auto transformed = [&](const Matrix& rows, std::int64_t n, const Matrix& center, bool divide) {
    Matrix result(rows.begin(), rows.begin() + n * d);
    for (std::int64_t i = 0; i < n * d; ++i) {
      const auto at = static_cast<std::size_t>(i), f = static_cast<std::size_t>(i % d);
      if (!center.empty()) result[at] -= center[f];
      if (!c.scaling.empty()) result[at] = divide ? result[at] / c.scaling[f] : result[at] * c.scaling[f];
    }
    return result;
  };
  const Matrix q = transformed(query, c.n_query, c.query_center, false),
               k = transformed(key, c.n_key, c.key_center, true);
  std::vector<FeatureRow> rows_q, rows_k;
  for (std::int64_t i = 0; i < c.n_query; ++i) rows_q.push_back(feature_row(c.features, q.data() + i * d, false));
  for (std::int64_t j = 0; j < c.n_key; ++j) rows_k.push_back(feature_row(c.features, k.data() + j * d, true));
  const Rotations rotations(c, c.rotate_numerator ? rows_k[0].features.size() : 0);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  Matrix output(static_cast<std::size_t>(c.n_query * width), 0.0);
  for (std::int64_t i = 0; i < c.n_query; ++i) {
    const auto& row_q = rows_q[static_cast<std::size_t>(i)];
    struct Pair {
      std::int64_t j;
      Weight denominator, numerator;
    };
    std::vector<Pair> weights;
    double top = -HUGE_VAL;
    for (std::int64_t j = 0; j < c.n_key; ++j) {
      if (!visible(c, i, j)) continue;
      const double* k_j = k.data() + j * d;
      Weight w{};
      if (c.softmax_window > 0 && std::abs(i - j) < c.softmax_window) {  // causal: j <= i
        w = {inner(q.data() + i * d, k_j, d) * scale + c.gate - row_q.row_log, 1};
      } else {
        w = feature_weight(c.features, row_q, rows_k[static_cast<std::size_t>(j)]);
      }
      Weight numerator =
          c.rotate_numerator ? rotated_weight(c, row_q, rows_k[static_cast<std::size_t>(j)], rotations, j - i) : w;
      for (std::int64_t f = 0; f < d && !c.query_center.empty(); ++f) {
        const double unscaled = key[static_cast<std::size_t>(j * d + f)] -
                                (c.key_center.empty() ? 0 : c.key_center[static_cast<std::size_t>(f)]);
        for (Weight* weight : {&w, &numerator})
          weight->log += scale * c.query_center[static_cast<std::size_t>(f)] * unscaled;
      }
      weights.push_back({j, w, numerator});
      top = std::max({top, w.log, numerator.log});
    }
    if (top == -HUGE_VAL) continue;  // no visible key, or all weights are zero
    double total = 0, square = 0;
    double* out = output.data() + i * width;
    for (const auto& [j, w, numerator] : weights) {
      const double weight = numerator.sign * std::exp(numerator.log - top);
      total += w.sign * std::exp(w.log - top);
      for (std::int64_t f = 0; f < width; ++f) out[f] += weight * value[static_cast<std::size_t>(j * width + f)];
    }
    for (std::int64_t f = 0; f < width; ++f) square += out[f] * out[f] / static_cast<double>(width);
    const double by = c.rms ? std::sqrt(square) : total;
    for (std::int64_t f = 0; f < width; ++f) out[f] = by == 0 ? 0 : out[f] / by;
  }
  return output;
}

}  // namespace furlong::reference
