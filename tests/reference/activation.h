#pragma once
// Activations from their definitions, in long double, so that they can check double too.
#include <cmath>

#include "framework/ops/elementwise/activation.h"

namespace furlong::reference {

inline long double activation(ops::ActivationKind kind, long double x) {
  const long double pi = std::acos(-1.0L);
  switch (kind) {
    case ops::ActivationKind::gelu:
      return x * 0.5L * std::erfc(-x / std::sqrt(2.0L));
    case ops::ActivationKind::gelu_tanh:
      // 0.5 x (1 + tanh(u)) = x / (1 + e^-2u). The latter has no cancellation in the lower tail.
      return x / (1 + std::exp(-2 * std::sqrt(2 / pi) * (x + 0.044715L * x * x * x)));
    case ops::ActivationKind::relu:
      return x > 0 ? x : 0.0L;
    case ops::ActivationKind::silu:
      return x / (1 + std::exp(-x));
  }
  return std::nanl("");
}

inline long double activation_derivative(ops::ActivationKind kind, long double x) {
  const long double pi = std::acos(-1.0L);
  switch (kind) {
    case ops::ActivationKind::gelu:
      return 0.5L * std::erfc(-x / std::sqrt(2.0L)) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi);
    case ops::ActivationKind::gelu_tanh: {
      const long double t = std::tanh(std::sqrt(2 / pi) * (x + 0.044715L * x * x * x));
      return 0.5L * (1 + t) + 0.5L * x * (1 - t * t) * std::sqrt(2 / pi) * (1 + 3 * 0.044715L * x * x);
    }
    case ops::ActivationKind::relu:
      return x > 0 ? 1.0L : 0.0L;
    case ops::ActivationKind::silu: {
      const long double s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
  }
  return std::nanl("");
}

}  // namespace furlong::reference
