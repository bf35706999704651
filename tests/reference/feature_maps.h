#pragma once
// Feature maps of single rows, computed from their definitions in double (docs/internals/numerics.md).
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
  std::int64_t d = 0, n_projections = 0;
  std::vector<double> random_projection{};  // [n_projections, d]: the random projection
  double oprf_a = 0;
};

struct FeatureRow {
  std::vector<double> features{};  // logarithms or values, depending on the map
  double row_log = 0;
};

inline double inner(const double* a, const double* b, std::int64_t d) {
  double sum = 0;
  for (std::int64_t i = 0; i < d; ++i) sum += a[i] * b[i];
  return sum;
}

namespace feature_maps {

/// sqrt(c_r r! / Π α_i!) Π x'_i^α_i for every multi-index of degree r. A multi-index is an ascending list of indices;
/// the lists are in lexicographic order.
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

using Row = std::vector<double>;

inline Row scaled(const Row& x) {
  Row result = x;
  for (double& value : result) value *= std::pow(static_cast<double>(x.size()), -0.25);
  return result;
}
/// ω_f·x' for every f, and |x'|²/2.
inline Row projections(const FeatureMapCase& c, const Row& x) {
  const Row x_scaled = scaled(x);
  Row u;
  for (std::int64_t f = 0; f < c.n_projections; ++f)
    u.push_back(inner(c.random_projection.data() + f * c.d, x_scaled.data(), c.d));
  return u;
}
inline double half_square(const Row& x) {
  const Row x_scaled = scaled(x);
  return inner(x_scaled.data(), x_scaled.data(), static_cast<std::int64_t>(x.size())) / 2;
}

/// Log features of keys include -|x'|²/2. For queries this term, and -log m, are in the row's logarithm.
inline FeatureRow positive_features(Row logs, const Row& x, bool is_key) {
  const double half = half_square(x), m = static_cast<double>(logs.size());
  for (double& log : logs) log -= is_key ? half : 0;
  return {logs, is_key ? 0 : -half - std::log(m)};
}
/// Coefficient(r) is the coefficient of (q'·k')^r.
template <class Coefficient>
FeatureRow polynomial(const FeatureMapCase& c, const Row& x, const Coefficient& coefficient) {
  FeatureRow row;
  for (std::int64_t r = 0; r <= c.options.order; ++r) {
    std::vector<std::size_t> indices;
    monomials(scaled(x), r, coefficient(static_cast<double>(r)), indices, row.features);
  }
  return row;
}
inline double factorial(double n) { return std::tgamma(n + 1); }

inline void softmax_logs(const Row& x, double sign, Row& features) {
  double total = 0, top = -1e300;
  for (double value : x) top = std::max(top, sign * value);
  for (double value : x) total += std::exp(sign * value - top);
  for (double value : x) features.push_back(sign * value - top - std::log(total));
}

/// φ of row x by the map's definition, specialized for each map; a map without a specialization does not compile.
template <ops::FeatureMap map>
FeatureRow defined(const FeatureMapCase& c, const Row& x, bool is_key) = delete;

using enum ops::FeatureMap;

template <>
inline FeatureRow defined<elu1>(const FeatureMapCase& /*c*/, const Row& x, bool /*is_key*/) {
  FeatureRow row;
  for (double value : x) row.features.push_back(value > 0 ? std::log1p(value) : value);
  return row;
}
template <>
inline FeatureRow defined<relu>(const FeatureMapCase& /*c*/, const Row& x, bool /*is_key*/) {
  FeatureRow row;
  for (double value : x) row.features.push_back(std::max(value, 0.0));
  return row;
}
template <>
inline FeatureRow defined<exp>(const FeatureMapCase& /*c*/, const Row& x, bool /*is_key*/) {
  return {x, 0};
}
template <>
inline FeatureRow defined<favor_positive>(const FeatureMapCase& c, const Row& x, bool is_key) {
  return positive_features(projections(c, x), x, is_key);
}
template <>
inline FeatureRow defined<favor_hyperbolic>(const FeatureMapCase& c, const Row& x, bool is_key) {
  Row logs = projections(c, x);
  for (double u : projections(c, x)) logs.push_back(-u);
  return positive_features(logs, x, is_key);
}
template <>
inline FeatureRow defined<oprf>(const FeatureMapCase& c, const Row& x, bool is_key) {
  Row logs = projections(c, x);
  for (std::int64_t f = 0; f < c.n_projections; ++f) {
    const double* w = c.random_projection.data() + f * c.d;
    double& log = logs[static_cast<std::size_t>(f)];
    log = c.oprf_a * inner(w, w, c.d) + std::sqrt(1 - 4 * c.oprf_a) * log;
  }
  FeatureRow row = positive_features(logs, x, is_key);
  if (!is_key) row.row_log += static_cast<double>(c.d) / 2 * std::log(1 - 4 * c.oprf_a);
  return row;
}
template <>
inline FeatureRow defined<favor_relu>(const FeatureMapCase& c, const Row& x, bool is_key) {
  FeatureRow row{projections(c, x), is_key ? 0 : -std::log(static_cast<double>(c.n_projections))};
  for (double& u : row.features) u = std::max(u, 0.0) + c.options.kernel_epsilon;
  return row;
}
template <>
inline FeatureRow defined<favor_trig>(const FeatureMapCase& c, const Row& x, bool is_key) {
  FeatureRow row;
  for (double u : projections(c, x)) row.features.push_back(std::cos(u));
  for (double u : projections(c, x)) row.features.push_back(std::sin(u));
  row.row_log = half_square(x) - (is_key ? 0 : std::log(static_cast<double>(c.n_projections)));
  return row;
}
template <>
inline FeatureRow defined<taylor>(const FeatureMapCase& c, const Row& x, bool /*is_key*/) {
  return polynomial(c, x, [](double r) { return 1 / factorial(r); });
}
template <>
inline FeatureRow defined<limit>(const FeatureMapCase& c, const Row& x, bool /*is_key*/) {
  const double n = static_cast<double>(c.options.order);
  return polynomial(c, x, [n](double r) { return factorial(n) / (factorial(r) * factorial(n - r)) / std::pow(n, r); });
}
template <>
inline FeatureRow defined<cosine>(const FeatureMapCase& c, const Row& x, bool /*is_key*/) {
  const double norm = std::sqrt(inner(x.data(), x.data(), c.d));
  FeatureRow row{{1}, 0};
  for (double value : x) row.features.push_back(norm > 0 ? value / norm : 0);
  return row;
}
template <>
inline FeatureRow defined<hedgehog>(const FeatureMapCase& /*c*/, const Row& x, bool /*is_key*/) {
  FeatureRow row;
  softmax_logs(x, 1, row.features);
  softmax_logs(x, -1, row.features);
  return row;
}

}  // namespace feature_maps

/// φ of one row x [d].
inline FeatureRow feature_row(const FeatureMapCase& c, const double* x, bool is_key) {
  const std::vector<double> row(x, x + c.d);
  switch (c.map) {
#define FURLONG_FEATURE_MAP_CASE(name) \
  case ops::FeatureMap::name:          \
    return feature_maps::defined<ops::FeatureMap::name>(c, row, is_key);
    FURLONG_FEATURE_MAPS(FURLONG_FEATURE_MAP_CASE)
#undef FURLONG_FEATURE_MAP_CASE
  }
  return {};
}

/// Σ_f φ_f(q) φ_f(k) with both rows' logarithms: the kernel, or the estimate of it with this random projection.
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
