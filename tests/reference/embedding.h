#pragma once
#include <cstdint>
#include <vector>

namespace furlong::reference {

/// y[r] = table[tokens[r]] + positions[first + r % n]; positions may be empty.
inline std::vector<double> embedding(const std::vector<std::int32_t>& tokens, const std::vector<double>& table,
                                     const std::vector<double>& positions, std::size_t n, std::size_t d,
                                     std::size_t first) {
  std::vector<double> y(tokens.size() * d);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    for (std::size_t i = 0; i < d; ++i) {
      y[row * d + i] = table[static_cast<std::size_t>(tokens[row]) * d + i];
      if (!positions.empty()) y[row * d + i] += positions[(first + row % n) * d + i];
    }
  }
  return y;
}

}  // namespace furlong::reference
