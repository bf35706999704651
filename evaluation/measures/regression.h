#pragma once
// Measures of predicted numbers.
#include <span>

namespace furlong {

/// Returns Pearson's correlation of x and y; NaN if one of them is constant or if there are fewer than two values.
double pearson_correlation(std::span<const double> x, std::span<const double> y);
/// Returns Spearman's rank correlation: Pearson's correlation of the ranks, equal values having their mean rank.
double spearman_correlation(std::span<const double> x, std::span<const double> y);
/// Returns the root of the mean squared difference; NaN without values.
double root_mean_squared_error(std::span<const double> x, std::span<const double> y);

}  // namespace furlong
