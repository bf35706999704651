#pragma once
#include <span>
#include <vector>

namespace furlong {

/// Returns the rank of each value, from 1; equal values have the mean of their ranks.
std::vector<double> mean_ranks(std::span<const double> values);

}  // namespace furlong
