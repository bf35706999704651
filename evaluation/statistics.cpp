#include "evaluation/statistics.h"

#include <algorithm>

#include "framework/core/error.h"

namespace furlong {

double median(std::vector<double> values) {
  require(!values.empty(), "median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace furlong
