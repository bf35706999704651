#pragma once
// Shared by tests of matrix products: sizes, types, operands as views of wider matrices, and the bound on rounding
// errors.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/framework/ops/op_testing.h"
#include "tests/reference/gemm.h"

namespace furlong::testing {

using ops::GemmEpilogue;
using GemmActivation = GemmEpilogue::Activation;

inline constexpr GemmActivation gemm_activations[] = {GemmActivation::none, GemmActivation::relu, GemmActivation::gelu,
                                                      GemmActivation::gelu_tanh, GemmActivation::silu};

struct Sizes {
  std::int64_t rows, columns, inner;
};
inline constexpr Sizes all_sizes[] = {{1, 1, 1},     {1, 7, 3},    {5, 1, 9},   {13, 17, 1},
                                      {33, 65, 127}, {64, 64, 64}, {129, 3, 70}};
// The last: on CPUs, products of bfloat16 with packed b.
inline constexpr Sizes few_sizes[] = {{1, 1, 1}, {13, 17, 5}, {33, 70, 65}, {2050, 18, 9}};

/// Dtypes of the operands and the result.
struct Types {
  DType inputs, output;
};
inline constexpr Types all_types[] = {{DType::float32, DType::float32},
                                      {DType::bfloat16, DType::bfloat16},
                                      {DType::bfloat16, DType::float32},
                                      {DType::float64, DType::float64}};

inline std::string text_of(const Types& types, const Sizes& sizes, bool transpose_a, bool transpose_b) {
  return fmt::format("{} into {}, {} x {} x {}{}{}", name_of(types.inputs), name_of(types.output), sizes.rows,
                     sizes.inner, sizes.columns, transpose_a ? ", a transposed" : "",
                     transpose_b ? ", b transposed" : "");
}

/// The operands of one product; views of wider matrices if `strided`.
struct Operands {
  Tensor a, b, c, whole_c;
  std::vector<double> values_a, values_b, values_c;

  Operands(const Types& types, const Sizes& sizes, bool transpose_a, bool transpose_b, bool strided) {
    const auto matrix = [&](std::int64_t rows, std::int64_t columns, DType dtype, const char* name, Tensor* whole) {
      const std::int64_t margin = strided ? 3 : 0;
      const Tensor tensor =
          tensor_of(normal_values(rows * (columns + 2 * margin), name), {rows, columns + 2 * margin}, dtype);
      if (whole) *whole = tensor;
      return tensor.narrow(1, margin, columns);
    };
    a = transpose_a ? matrix(sizes.inner, sizes.rows, types.inputs, "a", nullptr)
                    : matrix(sizes.rows, sizes.inner, types.inputs, "a", nullptr);
    b = transpose_b ? matrix(sizes.columns, sizes.inner, types.inputs, "b", nullptr)
                    : matrix(sizes.inner, sizes.columns, types.inputs, "b", nullptr);
    c = matrix(sizes.rows, sizes.columns, types.output, "c", &whole_c);
    values_a = values_of(a);
    values_b = values_of(b);
    values_c = values_of(c);
  }
};

/// Returns the largest error relative to the rounding error bound, over all elements. A sum of n terms in any order,
/// with or without fused multiply-adds, is within n u Σ|terms| (Higham 2002, section 3.1), where u is the unit of the
/// accumulation dtype. One more rounding stores it. Activations amplify an error by at most their largest
/// derivative, 1.13, and add errors of their own: `activation_error` times the magnitude. `rounded`: intermediate
/// results that are rounded to the output dtype too, or empty.
inline double error_over_bound(const std::vector<double>& found, const std::vector<double>& expected,
                               const std::vector<double>& magnitude, std::int64_t terms, DType output,
                               double activation_error, const std::vector<double>& rounded = {}) {
  const double sum_unit = rounding_unit(accumulate_dtype(output)), store_unit = rounding_unit(output);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double intermediate = rounded.empty() ? 0 : 1.13 * store_unit * std::abs(rounded[i]);
    const double bound = intermediate + 1.13 * static_cast<double>(terms) * sum_unit * magnitude[i] +
                         store_unit * std::abs(expected[i]) * 1.01 + activation_error * magnitude[i] + 1e-300;
    const double ratio = std::abs(found[i] - expected[i]) / bound;
    worst = std::max(worst, std::isnan(ratio) ? HUGE_VAL : ratio);
  }
  return worst;
}

}  // namespace furlong::testing
