#pragma once
#include <vector>

namespace furlong::reference {

/// y[b, t, c] = Σ_j weight[c, j] · x[b, t - (width - 1) + j, c]. Before the start comes `history` [batch, width - 1,
/// channels]; empty means zeros.
inline std::vector<double> short_convolution(const std::vector<double>& x, const std::vector<double>& weight,
                                             const std::vector<double>& history, std::size_t batch, std::size_t n,
                                             std::size_t channels, std::size_t width) {
  std::vector<double> y(x.size());
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t t = 0; t < n; ++t) {
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (std::size_t j = 0; j < width; ++j) {
          const std::size_t at = t + j;  // index in history followed by x
          double input = 0;
          if (at >= width - 1) {
            input = x[(b * n + at - (width - 1)) * channels + c];
          } else if (!history.empty()) {
            input = history[(b * (width - 1) + at) * channels + c];
          }
          sum += weight[c * width + j] * input;
        }
        y[(b * n + t) * channels + c] = sum;
      }
    }
  }
  return y;
}

}  // namespace furlong::reference
