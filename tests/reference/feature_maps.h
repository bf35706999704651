#pragma once
// Feature maps of single rows, straight from their definitions, in double (docs/numerics.md).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::reference {

struct FeatureMapCase {
  ops::FeatureMap map;
  ops::FeatureMapOptions options{};
  std::int64_t d = 0, n_directions = 0;
  std::vector<double> directions{};  // [n_directions, d]
  double oprf_a = 0;
};

struct FeatureRow {
  std::vector<double> features;  // logarithms or values, as the map's form says
  double row_log = 0;
};

inline double inner(const double* a, const double* b, std::int64_t d) {
  double sum = 0;
  for (std::int64_t i = 0; i < d; ++i) sum += a[i] * b[i];
  return sum;
}

namespace feature_maps {

/// sqrt(c_r r! / Π α_i!) Π x'_i^α_i for every multi-index of degree r, given as ascending lists of indices in
/// lexicographic order.
inline void monomials(const std::vector<double>& x, std::int64_t r, double coefficient,
                      std::vector<std::size_t>& indices, std::vector<double>& features) {
  if (static_cast<std::int64_t>(indices.size()) < r) {
    for (std::size_t next = indices.empty() ? 0 : indices.back(); next < x.size(); ++next) {
      indices.push_back(next);
      monomials(x, r, coefficient, indices, features);
      indices.pop_back();
    }
    return;
  }
  double product = 1, orders = 1, repeats = 0;
  for (std::size_t position = 0; position < indices.size(); ++position) {
    repeats = position > 0 && indices[position] == indices[position - 1] ? repeats + 1 : 1;
    orders *= static_cast<double>(position + 1) / repeats;  // r! over the factorials of how often each index occurs
    product *= x[indices[position]];
  }
  features.push_back(std::sqrt(coefficient * orders) * product);
}

inline double coefficient(ops::FeatureMap map, std::int64_t order, std::int64_t r) {
  const double n = static_cast<double>(order), factorial = std::tgamma(static_cast<double>(r) + 1);
  if (map == ops::FeatureMap::taylor) return 1 / factorial;
  return std::tgamma(n + 1) / (factorial * std::tgamma(n - static_cast<double>(r) + 1)) /
         std::pow(n, static_cast<double>(r));
}

inline void softmax_logs(const std::vector<double>& x, double sign, std::vector<double>& features) {
  double total = 0, top = -1e300;
  for (double value : x) top = std::max(top, sign * value);
  for (double value : x) total += std::exp(sign * value - top);
  for (double value : x) features.push_back(sign * value - top - std::log(total));
}

inline FeatureRow projected(const FeatureMapCase& c, const std::vector<double>& scaled, bool is_key) {
  using ops::FeatureMap;
  const double half = inner(scaled.data(), scaled.data(), c.d) / 2, n = static_cast<double>(c.n_directions);
  const double a = c.map == FeatureMap::oprf ? c.oprf_a : 0;
  FeatureRow row;
  std::vector<double> second;
  for (std::int64_t f = 0; f < c.n_directions; ++f) {
    const double* w = c.directions.data() + f * c.d;
    const double u = inner(w, scaled.data(), c.d);
    if (c.map == FeatureMap::favor_relu) {
      row.features.push_back(std::max(u, 0.0) + c.options.kernel_epsilon);
    } else if (c.map == FeatureMap::favor_trig) {
      row.features.push_back(std::cos(u));
      second.push_back(std::sin(u));
    } else {
      const double square = is_key ? half : 0;
      row.features.push_back(a * inner(w, w, c.d) + std::sqrt(1 - 4 * a) * u - square);
      if (c.map == FeatureMap::favor_hyperbolic) second.push_back(-u - square);
    }
  }
  row.features.insert(row.features.end(), second.begin(), second.end());
  if (c.map == FeatureMap::favor_relu) {
    row.row_log = is_key ? 0 : -std::log(n);
  } else if (c.map == FeatureMap::favor_trig) {
    row.row_log = is_key ? half : half - std::log(n);
  } else if (!is_key) {
    row.row_log =
        -half - std::log(static_cast<double>(row.features.size())) + static_cast<double>(c.d) / 2 * std::log(1 - 4 * a);
  }
  return row;
}

}  // namespace feature_maps

/// φ of one row x [d].
inline FeatureRow feature_row(const FeatureMapCase& c, const double* x, bool is_key) {
  using ops::FeatureMap;
  const std::vector<double> plain(x, x + c.d);
  std::vector<double> scaled = plain;
  for (double& value : scaled) value *= std::pow(static_cast<double>(c.d), -0.25);
  FeatureRow row;
  switch (c.map) {
    case FeatureMap::elu1:
      for (double value : plain) row.features.push_back(value > 0 ? std::log1p(value) : value);
      return row;
    case FeatureMap::relu:
      for (double value : plain) row.features.push_back(std::max(value, 0.0));
      return row;
    case FeatureMap::exp:
      row.features = plain;
      return row;
    case FeatureMap::taylor:
    case FeatureMap::limit:
      for (std::int64_t r = 0; r <= c.options.order; ++r) {
        std::vector<std::size_t> indices;
        feature_maps::monomials(scaled, r, feature_maps::coefficient(c.map, c.options.order, r), indices, row.features);
      }
      return row;
    case FeatureMap::cosine: {
      const double norm = std::sqrt(inner(x, x, c.d));
      row.features.push_back(1);
      for (double value : plain) row.features.push_back(norm > 0 ? value / norm : 0);
      return row;
    }
    case FeatureMap::hedgehog:
      feature_maps::softmax_logs(plain, 1, row.features);
      feature_maps::softmax_logs(plain, -1, row.features);
      return row;
    default:
      return feature_maps::projected(c, scaled, is_key);
  }
}

/// Σ_f φ_f(q) φ_f(k) with both rows' logarithms: the kernel, or this draw's estimate of it.
inline double kernel_of_rows(const FeatureMapCase& c, const FeatureRow& query, const FeatureRow& key) {
  const bool logarithms = ops::feature_map_info(c.map).form == ops::FeatureForm::logarithms;
  double sum = 0;
  for (std::size_t f = 0; f < query.features.size(); ++f)
    sum += logarithms ? std::exp(query.features[f] + key.features[f] + query.row_log + key.row_log)
                      : query.features[f] * key.features[f];
  return logarithms ? sum : sum * std::exp(query.row_log + key.row_log);
}

/// The kernel in closed form, for maps that have one: for estimators of softmax exp(q·k/√d).
inline double closed_kernel(const FeatureMapCase& c, const double* q, const double* k) {
  using ops::FeatureMap;
  const double s = inner(q, k, c.d) / std::sqrt(static_cast<double>(c.d)), order = static_cast<double>(c.options.order);
  if (c.map == FeatureMap::limit) return std::pow(1 + s / order, order);
  if (c.map == FeatureMap::cosine) return 1 + inner(q, k, c.d) / std::sqrt(inner(q, q, c.d) * inner(k, k, c.d));
  if (c.map != FeatureMap::taylor) return std::exp(s);
  double sum = 0;
  for (std::int64_t r = 0; r <= c.options.order; ++r)
    sum += std::pow(s, static_cast<double>(r)) / std::tgamma(static_cast<double>(r) + 1);
  return sum;
}

}  // namespace furlong::reference
