#include "evaluation/measures/regression.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <numeric>
#include <vector>

#include "framework/core/error.h"

namespace furlong {

namespace {

/// Returns the rank of each value, from 1; equal values have the mean of their ranks. That of NaN is NaN.
std::vector<double> mean_ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::weak_order(values[a], values[b]) < 0; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double value = values[order[begin]];
    const double rank =
        std::isnan(value) ? value : 0.5 * static_cast<double>(begin + 1 + end);  // mean of begin + 1 ... end
    for (; begin < end; ++begin) ranks[order[begin]] = rank;
  }
  return ranks;
}

}  // namespace

double pearson_correlation(std::span<const double> x, std::span<const double> y) {
  require(x.size() == y.size(), "correlation of {} and {} values", x.size(), y.size());
  const auto varies = [](std::span<const double> values) {
    return std::any_of(values.begin(), values.end(), [&](double value) { return value != values.front(); });
  };
  if (!varies(x) || !varies(y)) return std::numeric_limits<double>::quiet_NaN();
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n,
               mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double dx = x[i] - mean_x, dy = y[i] - mean_y;
    xx += dx * dx;
    yy += dy * dy;
    xy += dx * dy;
  }
  return std::clamp(xy / std::sqrt(xx) / std::sqrt(yy), -1.0, 1.0);
}

double spearman_correlation(std::span<const double> x, std::span<const double> y) {
  return pearson_correlation(mean_ranks(x), mean_ranks(y));
}

double root_mean_squared_error(std::span<const double> x, std::span<const double> y) {
  require(x.size() == y.size(), "differences of {} and {} values", x.size(), y.size());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace furlong
