#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/ops/attention/linformer/sequence_projection.h"

namespace furlong::reference {

/// x [batch, n, n_heads·d] -> [batch, rows, n_heads·d], channel by channel from the definitions. `weight` has one of
/// the op's two shapes, selected by `shared`. `keys` [batch, n]; empty keeps all.
inline std::vector<double> sequence_projection(const std::vector<double>& x, const std::vector<double>& weight,
                                               bool shared, const std::vector<std::int32_t>& keys, std::size_t batch,
                                               std::size_t n, std::size_t d,
                                               const ops::SequenceProjectionOptions& options) {
  const auto n_heads = static_cast<std::size_t>(options.n_heads),
             r = static_cast<std::size_t>(options.projected_length);
  const auto longest = static_cast<std::size_t>(options.max_length), stride = (longest + r - 1) / r,
             width = n_heads * d;
  const bool linear = options.kind == ops::SequenceProjection::linear,
             mean = options.kind == ops::SequenceProjection::mean;
  const std::size_t rows = linear ? r : (n + stride - 1) / stride;
  std::vector<double> y(batch * rows * width, 0.0);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t channel = 0; channel < width; ++channel) {
        double sum = 0, count = 0;
        for (std::size_t t = 0; t < n; ++t) {
          if (!keys.empty() && keys[b * n + t] == 0) continue;
          if (!linear && t / stride != i) continue;
          double factor = 1;
          if (linear) factor = weight[((shared ? 0 : channel / d) * r + i) * longest + t];
          if (!linear && !mean) factor = weight[(shared ? channel % d : channel) * stride + t % stride];
          sum += factor * x[(b * n + t) * width + channel];
          count += 1;
        }
        y[(b * rows + i) * width + channel] = mean && count > 0 ? sum / count : sum;
      }
    }
  }
  return y;
}

}  // namespace furlong::reference
