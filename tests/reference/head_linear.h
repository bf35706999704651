#pragma once
#include <cstddef>
#include <vector>

namespace furlong::reference {

/// y[row, h, o] = Σ_c weight[h, o, c] · x[row, h, c].
inline std::vector<double> head_linear(const std::vector<double>& x, const std::vector<double>& weight,
                                       std::size_t rows, std::size_t n_heads, std::size_t d_out, std::size_t d) {
  std::vector<double> y(rows * n_heads * d_out, 0.0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t head = 0; head < n_heads; ++head) {
      for (std::size_t o = 0; o < d_out; ++o) {
        for (std::size_t c = 0; c < d; ++c) {
          y[(row * n_heads + head) * d_out + o] +=
              weight[(head * d_out + o) * d + c] * x[(row * n_heads + head) * d + c];
        }
      }
    }
  }
  return y;
}

}  // namespace furlong::reference
