#pragma once
// layernorm and rmsnorm after a residual sum, in double, from their definitions.
#include <cmath>
#include <vector>

#include "framework/ops/normalization/norm.h"

namespace furlong::reference {

struct NormResult {
  std::vector<double> residual, normed;
};

/// branch and bias may be empty.
inline NormResult norm(const std::vector<double>& residual_in, const std::vector<double>& branch,
                       const std::vector<double>& gain, const std::vector<double>& bias, ops::NormKind kind,
                       double epsilon) {
  NormResult result{residual_in, residual_in};
  for (std::size_t i = 0; i < branch.size(); ++i) result.residual[i] += branch[i];
  const std::size_t columns = gain.size();
  for (std::size_t begin = 0; begin < residual_in.size(); begin += columns) {
    double mean = 0, square = 0;
    if (kind == ops::NormKind::layernorm) {
      for (std::size_t j = 0; j < columns; ++j) mean += result.residual[begin + j] / static_cast<double>(columns);
    }
    for (std::size_t j = 0; j < columns; ++j)
      square += std::pow(result.residual[begin + j] - mean, 2) / static_cast<double>(columns);
    for (std::size_t j = 0; j < columns; ++j) {
      result.normed[begin + j] =
          (result.residual[begin + j] - mean) / std::sqrt(square + epsilon) * gain[j] + (bias.empty() ? 0 : bias[j]);
    }
  }
  return result;
}

}  // namespace furlong::reference
