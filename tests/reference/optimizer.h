#pragma once
// AdamW and EMA in double, as written in the papers.
#include <cmath>
#include <vector>

namespace furlong::reference {

struct AdamW {
  std::vector<double> values, first_moment, second_moment;
  explicit AdamW(std::vector<double> start)
      : values(std::move(start)), first_moment(values.size()), second_moment(values.size()) {}

  void step(const std::vector<double>& d_values, int t, double learning_rate, double beta1, double beta2,
            double epsilon, double weight_decay) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      first_moment[i] = beta1 * first_moment[i] + (1 - beta1) * d_values[i];
      second_moment[i] = beta2 * second_moment[i] + (1 - beta2) * d_values[i] * d_values[i];
      const double m_hat = first_moment[i] / (1 - std::pow(beta1, t)),
                   v_hat = second_moment[i] / (1 - std::pow(beta2, t));
      values[i] -= learning_rate * (m_hat / (std::sqrt(v_hat) + epsilon) + weight_decay * values[i]);
    }
  }
};

}  // namespace furlong::reference
