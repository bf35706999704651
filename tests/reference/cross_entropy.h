#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace furlong::reference {

struct CrossEntropy {
  std::vector<double> row_losses;  // 0 for ignored rows
  std::int32_t valid = 0, correct = 0;
  double loss = 0;
  std::vector<double> d_hidden, d_weight, d_bias;  // of `loss`
};

/// hidden [rows, d], weight [vocabulary, d], bias [vocabulary] or empty; computes all logits at once. normalizer 0: the
/// number of valid targets.
inline CrossEntropy cross_entropy(const std::vector<double>& hidden, const std::vector<double>& weight,
                                  const std::vector<double>& bias, const std::vector<std::int32_t>& targets,
                                  std::size_t d, double normalizer) {
  const std::size_t rows = targets.size(), vocabulary = weight.size() / d;
  CrossEntropy result;
  result.row_losses.resize(rows);
  result.d_hidden.resize(hidden.size());
  result.d_weight.resize(weight.size());
  result.d_bias.resize(vocabulary);
  for (std::int32_t target : targets) result.valid += target >= 0;
  if (normalizer == 0) normalizer = std::max(1, result.valid);
  for (std::size_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    const auto target = static_cast<std::size_t>(targets[r]);
    std::vector<double> logits(vocabulary);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      logits[v] = bias.empty() ? 0 : bias[v];
      for (std::size_t i = 0; i < d; ++i) logits[v] += hidden[r * d + i] * weight[v * d + i];
    }
    const auto top = std::max_element(logits.begin(), logits.end());
    result.correct += static_cast<std::size_t>(top - logits.begin()) == target;
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit - *top);
    result.row_losses[r] = std::log(sum) + *top - logits[target];
    result.loss += result.row_losses[r] / normalizer;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      const double d_logit = (std::exp(logits[v] - *top) / sum - (v == target ? 1 : 0)) / normalizer;
      result.d_bias[v] += d_logit;
      for (std::size_t i = 0; i < d; ++i) {
        result.d_hidden[r * d + i] += d_logit * weight[v * d + i];
        result.d_weight[v * d + i] += d_logit * hidden[r * d + i];
      }
    }
  }
  return result;
}

}  // namespace furlong::reference
