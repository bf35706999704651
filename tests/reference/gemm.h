#pragma once
// Products by their definition, in double.
#include <cmath>
#include <cstdint>
#include <vector>

#include "framework/primitives/gemm.h"

namespace furlong::reference {

inline double activation_after_product(ops::GemmEpilogue::Activation activation, double x) {
  using Activation = ops::GemmEpilogue::Activation;
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return std::nan("");
}

/// A product and, for each element, the sum of the magnitudes of its terms, to which rounding errors are proportional.
struct Product {
  std::vector<double> value, magnitude;  // [rows, columns]
};

/// op(a) · op(b) of row-major matrices: a is [rows, inner], or [inner, rows] if transposed; b is [inner, columns] or
/// [columns, inner].
inline Product product(const std::vector<double>& a, bool transpose_a, const std::vector<double>& b, bool transpose_b,
                       std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  const auto n = static_cast<std::size_t>(rows * columns);
  Product result{std::vector<double>(n), std::vector<double>(n)};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        const double left = a[static_cast<std::size_t>(transpose_a ? k * rows + i : i * inner + k)];
        const double right = b[static_cast<std::size_t>(transpose_b ? j * inner + k : k * columns + j)];
        sum += left * right;
        magnitude += std::abs(left * right);
      }
      result.value[static_cast<std::size_t>(i * columns + j)] = sum;
      result.magnitude[static_cast<std::size_t>(i * columns + j)] = magnitude;
    }
  }
  return result;
}

}  // namespace furlong::reference
