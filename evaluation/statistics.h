#pragma once
#include <vector>

namespace furlong {

/// Returns the median of at least one value.
double median(std::vector<double> values);

}  // namespace furlong
