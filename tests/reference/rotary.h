#pragma once
#include <cmath>
#include <complex>
#include <vector>

namespace furlong::reference {

/// Rows [batch * n, columns]. In each head the pair (i, i + d_head / 2) is a complex number, multiplied by exp(i
/// position base^(-2i / d_head)).
inline std::vector<double> rotary(std::vector<double> x, std::size_t n, std::size_t columns, std::size_t n_heads,
                                  std::size_t d_head, std::size_t first, double base) {
  for (std::size_t row = 0; row < x.size() / columns; ++row) {
    for (std::size_t head = 0; head < n_heads; ++head) {
      for (std::size_t i = 0; i < d_head / 2; ++i) {
        double& a = x[row * columns + head * d_head + i];
        double& b = x[row * columns + head * d_head + i + d_head / 2];
        const double theta = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d_head));
        const auto turned = std::complex<double>(a, b) * std::polar(1.0, static_cast<double>(first + row % n) * theta);
        a = turned.real();
        b = turned.imag();
      }
    }
  }
  return x;
}

}  // namespace furlong::reference
