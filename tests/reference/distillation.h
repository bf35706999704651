#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace furlong::reference {

/// The student or the teacher: hidden [rows, d], weight [vocabulary, d], bias [vocabulary] or empty.
struct ClassifierValues {
  std::vector<double> hidden, weight, bias;
  std::size_t d;
  std::vector<double> logits(std::size_t row) const {
    std::vector<double> result(weight.size() / d);
    for (std::size_t v = 0; v < result.size(); ++v) {
      result[v] = bias.empty() ? 0 : bias[v];
      for (std::size_t i = 0; i < d; ++i) result[v] += hidden[row * d + i] * weight[v * d + i];
    }
    return result;
  }
};

struct Distillation {
  double loss = 0;
  std::vector<double> d_hidden, d_weight, d_bias;  // of `loss`, for the student
};

/// log softmax(logits / temperature)
inline std::vector<double> log_probabilities(std::vector<double> logits, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) sum += std::exp((logit - top) / temperature);
  for (double& logit : logits) logit = (logit - top) / temperature - std::log(sum);
  return logits;
}

/// Computes all logits at once. normalizer 0: the number of valid targets.
inline Distillation distillation(const ClassifierValues& student, const ClassifierValues& teacher,
                                 const std::vector<std::int32_t>& targets, double temperature, double normalizer) {
  const std::size_t vocabulary = student.weight.size() / student.d;
  Distillation result;
  result.d_hidden.resize(student.hidden.size());
  result.d_weight.resize(student.weight.size());
  result.d_bias.resize(vocabulary);
  const auto counted = std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
  if (normalizer == 0) normalizer = static_cast<double>(std::max<std::int64_t>(1, counted));
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const auto q = log_probabilities(student.logits(r), temperature),
               p = log_probabilities(teacher.logits(r), temperature);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      result.loss += temperature * temperature * std::exp(p[v]) * (p[v] - q[v]) / normalizer;
      const double d_logit = temperature * (std::exp(q[v]) - std::exp(p[v])) / normalizer;
      result.d_bias[v] += d_logit;
      for (std::size_t i = 0; i < student.d; ++i) {
        result.d_hidden[r * student.d + i] += d_logit * student.weight[v * student.d + i];
        result.d_weight[v * student.d + i] += d_logit * student.hidden[r * student.d + i];
      }
    }
  }
  return result;
}

}  // namespace furlong::reference
