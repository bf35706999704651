#pragma once
#include <vector>

namespace furlong {

/// The middle one, or the mean of the two in the middle. Of one value or more.
double median(std::vector<double> values);

}  // namespace furlong
