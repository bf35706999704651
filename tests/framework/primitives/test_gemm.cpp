#include "framework/primitives/gemm.h"

#include <gmock/gmock.h>

#include <tuple>

#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm_simulated.h"
#include "tests/framework/primitives/gemm_testing.h"
#include "tests/reference/activation.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using Activation = GemmEpilogue::Activation;

class Gemm : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Gemm);
class ColumnSum : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ColumnSum);

/// cuBLASLt does not document how it evaluates tanh; the GPU's own instruction has a relative error of 2^-11.
constexpr double library_gelu_error = 0x1p-11;
bool is_library_gelu(const Types& types, Activation activation) {
  return device().type == DeviceType::cuda && types.output == DType::bfloat16 && activation == Activation::gelu_tanh;
}
/// cuBLASLt may round a product to the output dtype before it adds a bias or the previous c, and their sum before GELU
/// (docs/internals/numerics.md).
bool library_rounds(const Types& types) { return device().type == DeviceType::cuda && types.output == DType::bfloat16; }

TEST_P(Gemm, OverwritesAndAccumulatesForEveryTransposeDtypeAndSize) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : all_sizes) {
      for (const auto& [transpose_a, transpose_b] :
           {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, transpose_a, transpose_b));
        const Operands in(types, sizes, transpose_a, transpose_b, false);
        auto expected = reference::product(in.values_a, transpose_a, in.values_b, transpose_b, sizes.rows,
                                           sizes.columns, sizes.inner);
        ops::gemm(stream(), in.a, transpose_a, in.b, transpose_b, in.c, GradientMode::skip);
        EXPECT_EQ(values_of(in.c), in.values_c);
        ops::gemm(stream(), in.a, transpose_a, in.b, transpose_b, in.c, GradientMode::accumulate);
        auto sum = expected;
        for (std::size_t i = 0; i < sum.value.size(); ++i) {
          sum.value[i] += in.values_c[i];
          sum.magnitude[i] += std::abs(in.values_c[i]);
        }
        EXPECT_LE(error_over_bound(values_of(in.c), sum.value, sum.magnitude, sizes.inner + 1, types.output, 0,
                                   library_rounds(types) ? expected.value : std::vector<double>{}),
                  1);
        ops::gemm(stream(), in.a, transpose_a, in.b, transpose_b, in.c, GradientMode::overwrite);
        EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner, types.output, 0),
                  1);
      }
    }
  }
}

TEST_P(Gemm, ReadsAndWritesOnlyTheGivenColumnRanges) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : few_sizes) {
      for (const auto& [transpose_a, transpose_b] :
           {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
        for (GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
          const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, transpose_a, transpose_b));
          const Operands in(types, sizes, transpose_a, transpose_b, true);
          const std::vector<double> around = values_of(in.whole_c);
          auto expected = reference::product(in.values_a, transpose_a, in.values_b, transpose_b, sizes.rows,
                                             sizes.columns, sizes.inner);
          std::vector<double> rounded;
          if (mode == GradientMode::accumulate) {
            if (library_rounds(types)) rounded = expected.value;
            for (std::size_t i = 0; i < expected.value.size(); ++i) {
              expected.value[i] += in.values_c[i];
              expected.magnitude[i] += std::abs(in.values_c[i]);
            }
          }
          ops::gemm(stream(), in.a, transpose_a, in.b, transpose_b, in.c, mode);
          EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output,
                                     0, rounded),
                    1);
          const std::vector<double> after = values_of(in.whole_c);
          const std::int64_t width = sizes.columns + 6;
          for (std::size_t i = 0; i < around.size(); ++i) {
            const std::int64_t column = static_cast<std::int64_t>(i) % width;
            if (column < 3 || column >= sizes.columns + 3) {
              ASSERT_EQ(after[i], around[i]) << "element " << i << " outside the range changed";
            }
          }
        }
      }
    }
  }
}

TEST_P(Gemm, AppliesBiasAndActivationBeforeTheStore) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : few_sizes) {
      for (DType bias_dtype : {types.output, accumulate_dtype(types.output)}) {
        for (Activation activation : gemm_activations) {
          for (bool with_bias : {false, true}) {
            const ::testing::ScopedTrace trace(
                __FILE__, __LINE__,
                text_of(types, sizes, false, true) + fmt::format(", activation {}", static_cast<int>(activation)));
            const Operands in(types, sizes, false, true, false);
            const Tensor bias = tensor_of(normal_values(sizes.columns, "bias"), {sizes.columns}, bias_dtype);
            const std::vector<double> bias_values = values_of(bias);
            auto expected =
                reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
            std::vector<double> rounded;
            if (library_rounds(types) && (with_bias || activation == Activation::gelu_tanh)) rounded = expected.value;
            for (std::size_t i = 0; i < expected.value.size(); ++i) {
              const double added = with_bias ? bias_values[i % static_cast<std::size_t>(sizes.columns)] : 0;
              if (!rounded.empty() && with_bias && activation == Activation::gelu_tanh)
                rounded[i] = std::abs(rounded[i]) + std::abs(expected.value[i] + added);
              expected.value[i] = reference::activation_after_product(activation, expected.value[i] + added);
              expected.magnitude[i] += std::abs(added);
            }
            ops::gemm(stream(), in.a, false, in.b, true, in.c, GradientMode::overwrite,
                      {with_bias ? &bias : nullptr, activation});
            // oneDNN's error function is the five-term formula 7.1.26 of Abramowitz and Stegun: absolute error 1.5e-7
            // plus the exponential's rounding. Its tanh and sigmoid are accurate to a few ulp. Our own in double use
            // libm. On CUDA our own kernel computes all activations except the library's GELU, accurate to a few ulp in
            // both precisions.
            const double own = activation == Activation::none || activation == Activation::relu ? 0
                               : types.inputs == DType::float64     ? 4 * rounding_unit(DType::float64)
                               : is_library_gelu(types, activation) ? library_gelu_error
                                                                    : 8 * rounding_unit(DType::float32);
            EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1,
                                       types.output, own, rounded),
                      1);
          }
        }
      }
    }
  }
}

ops::ActivationKind kind_of(Activation activation) {
  for (const auto& [kind, name] : ops::activation_names) {
    if (ops::epilogue_activation(kind) == activation) return kind;
  }
  ADD_FAILURE() << "no op for activation " << static_cast<int>(activation);
  return ops::ActivationKind::relu;
}

/// An auxiliary for c, dense or a range of a wider matrix, which may or may not meet the library's alignment.
Tensor auxiliary_of(const Tensor& c, std::int64_t margin) {
  const std::int64_t rows = c.extent(0), columns = c.extent(1);
  return tensor_of(normal_values(rows * (columns + 2 * margin), "auxiliary", 2), {rows, columns + 2 * margin},
                   c.dtype())
      .narrow(1, margin, columns);
}

constexpr Sizes auxiliary_sizes[] = {{1, 1, 1}, {13, 17, 5}, {9, 40, 33}};

TEST_P(Gemm, AuxiliaryReceivesTheActivationInput) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : auxiliary_sizes) {
      for (Activation activation : gemm_activations) {
        if (activation == Activation::none) continue;
        for (std::int64_t margin : {0, 3, 8}) {
          const bool with_bias = margin != 3;
          const ::testing::ScopedTrace trace(
              __FILE__, __LINE__,
              text_of(types, sizes, false, true) + fmt::format(", activation {}", static_cast<int>(activation)));
          const Operands in(types, sizes, false, true, margin == 3);
          const Tensor bias = tensor_of(normal_values(sizes.columns, "bias"), {sizes.columns}, types.output);
          const Tensor auxiliary = auxiliary_of(in.c, margin);
          const std::vector<double> added = values_of(bias);
          auto expected =
              reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
          const auto rounded = with_bias && library_rounds(types) ? expected.value : std::vector<double>{};
          for (std::size_t i = 0; with_bias && i < expected.value.size(); ++i) {
            expected.value[i] += added[i % added.size()];
            expected.magnitude[i] += std::abs(added[i % added.size()]);
          }
          GemmEpilogue epilogue{with_bias ? &bias : nullptr, activation};
          epilogue.auxiliary = &auxiliary;
          ops::gemm(stream(), in.a, false, in.b, true, in.c, GradientMode::overwrite, epilogue);
          EXPECT_LE(error_over_bound(values_of(auxiliary), expected.value, expected.magnitude, sizes.inner + 1,
                                     types.output, 0, rounded),
                    1);
          // The activation of the auxiliary as stored, or of the sum before that: they differ by one store's rounding,
          // or by two where the library rounds the product, too. `own` covers both.
          const double own = (types.output == DType::bfloat16 ? 1.2 : 32) * rounding_unit(types.output) +
                             (is_library_gelu(types, activation) ? library_gelu_error : 0);
          for (double& value : expected.value)
            value = static_cast<double>(reference::activation(kind_of(activation), value));
          EXPECT_LE(
              error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output, own),
              1);
        }
      }
    }
  }
}

TEST_P(Gemm, ActivationGradientUsesTheAuxiliary) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : auxiliary_sizes) {
      for (Activation activation : gemm_activations) {
        if (activation == Activation::none) continue;
        for (std::int64_t margin : {0, 3, 8}) {
          const ::testing::ScopedTrace trace(
              __FILE__, __LINE__,
              text_of(types, sizes, false, false) + fmt::format(", activation {}", static_cast<int>(activation)));
          const Operands in(types, sizes, false, false, margin == 3);
          const Tensor auxiliary = auxiliary_of(in.c, margin);
          const std::vector<double> at = values_of(auxiliary);
          auto expected =
              reference::product(in.values_a, false, in.values_b, false, sizes.rows, sizes.columns, sizes.inner);
          for (std::size_t i = 0; i < at.size(); ++i) {
            expected.value[i] *= static_cast<double>(reference::activation_derivative(kind_of(activation), at[i]));
          }
          GemmEpilogue epilogue{nullptr, activation};
          epilogue.auxiliary = &auxiliary;
          epilogue.activation_gradient = true;
          ops::gemm(stream(), in.a, false, in.b, false, in.c, GradientMode::overwrite, epilogue);
          EXPECT_EQ(values_of(auxiliary), at);
          // The product may be rounded before it is multiplied. Derivatives are at most 1.13; the library's tanh enters
          // them squared, times x.
          const double own = (types.output == DType::bfloat16 ? 1.2 : 32) * rounding_unit(types.output) +
                             (is_library_gelu(types, activation) ? 4 * library_gelu_error : 0);
          EXPECT_LE(
              error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output, own),
              1);
        }
      }
    }
  }
}

TEST_P(Gemm, BiasGradientIsTheSumOverTheInnerDimension) {
  for (bool epilogues : {true, false}) {
    ops::simulated_gemm_library().has_all = epilogues;
    for (const Types& types : all_types) {
      for (const Sizes& sizes : {Sizes{1, 1, 1}, Sizes{13, 17, 5}, Sizes{70, 33, 300}}) {
        for (GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
          for (GradientMode sum_mode : {GradientMode::overwrite, GradientMode::accumulate}) {
            const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, true, false));
            const Operands in(types, sizes, true, false, sizes.rows == 13);
            const Tensor sums =
                tensor_of(normal_values(sizes.rows, "sums"), {sizes.rows}, accumulate_dtype(types.inputs));
            const std::vector<double> before = values_of(sums);
            auto product =
                reference::product(in.values_a, true, in.values_b, false, sizes.rows, sizes.columns, sizes.inner);
            auto sum =
                reference::product(in.values_a, true, std::vector<double>(static_cast<std::size_t>(sizes.inner), 1.0),
                                   false, sizes.rows, 1, sizes.inner);
            for (std::size_t i = 0; mode == GradientMode::accumulate && i < product.value.size(); ++i) {
              product.value[i] += in.values_c[i];
              product.magnitude[i] += std::abs(in.values_c[i]);
            }
            for (std::size_t i = 0; sum_mode == GradientMode::accumulate && i < before.size(); ++i) {
              sum.value[i] += before[i];
              sum.magnitude[i] += std::abs(before[i]);
            }
            GemmEpilogue epilogue;
            epilogue.bias_gradient = {sums, sum_mode};
            ops::gemm(stream(), in.a, true, in.b, false, in.c, mode, epilogue);
            EXPECT_LE(
                error_over_bound(values_of(in.c), product.value, product.magnitude, sizes.inner + 1, types.output, 0),
                1);
            EXPECT_LE(error_over_bound(values_of(sums), sum.value, sum.magnitude, sizes.inner + 1, sums.dtype(), 0), 1);
          }
        }
      }
    }
  }
  ops::simulated_gemm_library().has_all = true;
}

TEST_P(Gemm, EmptySumIsZeroAndEmptyProductDoesNothing) {
  for (const Types& types : all_types) {
    const Tensor a = Tensor::empty({2, 0}, types.inputs, device()), b = Tensor::empty({0, 3}, types.inputs, device());
    const Tensor c = tensor_of(normal_values(6, "c"), {2, 3}, types.output);
    const std::vector<double> before = values_of(c);
    ops::gemm(stream(), a, false, b, false, c, GradientMode::accumulate);
    EXPECT_EQ(values_of(c), before);
    ops::gemm(stream(), a, false, b, false, c, GradientMode::overwrite);
    EXPECT_EQ(values_of(c), std::vector<double>(6));
    const Tensor nothing = Tensor::empty({0, 3}, types.output, device());
    ops::gemm(stream(), Tensor::empty({0, 4}, types.inputs, device()), false,
              Tensor::zeros({4, 3}, types.inputs, device()), false, nothing, GradientMode::overwrite);
    const Tensor sums = tensor_of({1, 2}, {2}, types.output);
    GemmEpilogue epilogue;
    epilogue.bias_gradient = {sums, GradientMode::overwrite};
    ops::gemm(stream(), Tensor::empty({0, 2}, types.inputs, device()), true, b, false, c, GradientMode::overwrite,
              epilogue);
    EXPECT_EQ(values_of(sums), std::vector<double>(2));
  }
}

TEST_P(Gemm, PropagatesInfinityAndNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : float_dtypes) {
    const Tensor a = tensor_of({1, 2, infinity, 1, 1, 1}, {3, 2}, dtype), b = tensor_of({1, 0, 0, 1}, {2, 2}, dtype);
    const Tensor c = Tensor::empty({3, 2}, dtype, device());
    ops::gemm(stream(), a, false, b, false, c, GradientMode::overwrite);
    const std::vector<double> values = values_of(c);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(values[2], infinity);
    EXPECT_TRUE(std::isnan(values[3]));  // infinity times zero
    EXPECT_EQ(values[5], 1);
  }
}

TEST_P(Gemm, RepeatedProductHasTheSameBits) {
  // Tall, wide, and the long inner dimension of a weight's gradient, which oneDNN splits among threads.
  for (const Sizes& sizes : {Sizes{300, 70, 65}, Sizes{24, 300, 129}, Sizes{48, 40, 4096}}) {
    for (const Types& types : all_types) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, true, false));
      const Operands in(types, sizes, true, false, false);
      const auto run = [&](int threads, std::int64_t padding) {
        const WithThreads with(threads);
        const Tensor c =
            Tensor::empty({sizes.rows, sizes.columns + padding}, types.output, device()).narrow(1, 0, sizes.columns);
        ops::gemm(stream(), in.a, true, in.b, false, c, GradientMode::overwrite);
        return values_of(c);
      };
      const std::vector<double> first = run(4, 0);
      EXPECT_EQ(run(4, 0), first);
      if (types.inputs == DType::float64 && device().type != DeviceType::cuda) {  // cuBLASLt chooses by strides too
        EXPECT_EQ(run(1, 16), first);
      }
    }
  }
}

TEST_P(Gemm, TensorFloat32IsOffByDefaultAndAffectsOnlyCuda) {
  const Sizes sizes{64, 48, 128};
  const Operands in({DType::float32, DType::float32}, sizes, false, true, false);
  const auto run = [&](const Stream& on) {
    ops::gemm(on, in.a, false, in.b, true, in.c, GradientMode::overwrite);
    return values_of(in.c);
  };
  Stream with_tf32 = stream();
  with_tf32.products.tf32 = true;
  const std::vector<double> exact = run(stream()), rounded = run(with_tf32);
  EXPECT_EQ(run(stream()), exact);
  if (device().type != DeviceType::cuda) {
    EXPECT_EQ(rounded, exact);
    return;
  }
  // Both factors of each term rounded to 11 bits (or cut off): 2^-10 each.
  const auto expected =
      reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
  for (std::size_t i = 0; i < rounded.size(); ++i)
    EXPECT_NEAR(rounded[i], expected.value[i], 2.1 * 0x1p-10 * expected.magnitude[i]);
}

TEST(GemmShapes, RejectsMismatchedShapesAndNamesThem) {
  const auto matrix = [](std::int64_t rows, std::int64_t columns, DType dtype = DType::float32) {
    return Tensor::zeros({rows, columns}, dtype);
  };
  const auto expect_rejected = [](const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c,
                                  const std::string& part, GradientMode mode = GradientMode::overwrite,
                                  const GemmEpilogue& epilogue = {}) {
    EXPECT_THAT(message_of<ContractError>([&] { ops::gemm(stream(), a, ta, b, tb, c, mode, epilogue); }),
                ::testing::HasSubstr(part));
  };
  expect_rejected(matrix(2, 3), false, matrix(4, 5), false, matrix(2, 5),
                  "[2, 3] · [4, 5] do not match the result [2, 5]");
  expect_rejected(matrix(2, 3), true, matrix(3, 5), false, matrix(3, 5), "[2, 3]ᵀ · [3, 5]");
  expect_rejected(matrix(2, 3), false, matrix(3, 5), false, matrix(5, 2), "result [5, 2]");
  expect_rejected(Tensor::zeros({6}, DType::float32), false, matrix(6, 1), false, matrix(1, 1), "[6]");
  expect_rejected(matrix(2, 3).permute({1, 0}), false, matrix(2, 5), false, matrix(3, 5), "contiguous rows");
  expect_rejected(matrix(2, 3, DType::bfloat16), false, matrix(3, 5), false, matrix(2, 5),
                  "operands bfloat16 and float32");
  expect_rejected(matrix(2, 3), false, matrix(3, 5), false, matrix(2, 5, DType::bfloat16), "result bfloat16");
  const Tensor bias = Tensor::zeros({5}, DType::float32), short_bias = Tensor::zeros({4}, DType::float32);
  expect_rejected(matrix(2, 3), false, matrix(3, 5), false, matrix(2, 5), "overwrite mode", GradientMode::accumulate,
                  {&bias, Activation::none});
  expect_rejected(matrix(2, 3), false, matrix(3, 5), false, matrix(2, 5), "overwrite mode", GradientMode::accumulate,
                  {nullptr, Activation::relu});
  expect_rejected(matrix(2, 3), false, matrix(3, 5), false, matrix(2, 5), "bias is [4], expected 5",
                  GradientMode::overwrite, {&short_bias, Activation::none});

  const Tensor c = matrix(2, 5), wide = matrix(2, 6), narrow_type = matrix(2, 5, DType::bfloat16);
  const auto expect_epilogue_rejected = [&](const GemmEpilogue& epilogue, const std::string& part,
                                            bool transpose_a = false) {
    expect_rejected(transpose_a ? matrix(3, 2) : matrix(2, 3), transpose_a, matrix(3, 5), false, matrix(2, 5), part,
                    GradientMode::overwrite, epilogue);
  };
  GemmEpilogue epilogue;
  epilogue.auxiliary = &c;
  expect_epilogue_rejected(epilogue, "requires an activation");
  epilogue.activation = Activation::gelu;
  epilogue.auxiliary = &wide;
  expect_epilogue_rejected(epilogue, "auxiliary is float32 [2, 6], expected float32 [2, 5]");
  epilogue.auxiliary = &narrow_type;
  expect_epilogue_rejected(epilogue, "auxiliary is bfloat16 [2, 5]");
  epilogue.auxiliary = nullptr;
  epilogue.activation_gradient = true;
  expect_epilogue_rejected(epilogue, "requires an auxiliary");
  epilogue.auxiliary = &c;
  epilogue.bias = &bias;
  expect_epilogue_rejected(epilogue, "and no bias");
  GemmEpilogue sums;
  sums.bias_gradient = {bias, GradientMode::overwrite};
  expect_epilogue_rejected(sums, "requires a transposed a");
  expect_epilogue_rejected(sums, "bias gradient is [5], expected 2", true);
  expect_rejected(matrix(3, 5), true, matrix(3, 5), false, matrix(5, 5), "without the product", GradientMode::skip,
                  sums);
  sums.activation = Activation::relu;
  expect_epilogue_rejected(sums, "requires a transposed a", true);
}

TEST_P(ColumnSum, AddsRowsInEveryDtypeAndMode) {
  for (DType from : float_dtypes) {
    for (DType to : {from, accumulate_dtype(from), DType::float64}) {
      for (const auto& [rows, columns] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 1}, {1, 65}, {301, 130}, {1300, 33}}) {
        const Tensor whole = tensor_of(normal_values(rows * (columns + 4), "column_sum"), {rows, columns + 4}, from);
        const Tensor matrix = whole.narrow(1, 2, columns),
                     target = tensor_of(normal_values(columns, "target"), {columns}, to);
        const std::vector<double> values = values_of(matrix), before = values_of(target);
        std::vector<double> sum(static_cast<std::size_t>(columns)), magnitude(static_cast<std::size_t>(columns));
        for (std::size_t i = 0; i < values.size(); ++i) {
          sum[i % static_cast<std::size_t>(columns)] += values[i];
          magnitude[i % static_cast<std::size_t>(columns)] += std::abs(values[i]);
        }
        ops::column_sum(stream(), matrix, {target, GradientMode::skip});
        EXPECT_EQ(values_of(target), before);
        ops::column_sum(stream(), matrix, {target, GradientMode::overwrite});
        EXPECT_LE(error_over_bound(values_of(target), sum, magnitude, rows, to, 0), 1);
        const std::vector<double> stored_sum = values_of(target);
        ops::column_sum(stream(), matrix, {target, GradientMode::accumulate});
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += stored_sum[i];
          magnitude[i] += std::abs(stored_sum[i]);
        }
        EXPECT_LE(error_over_bound(values_of(target), sum, magnitude, rows + 1, to, 0), 1);
      }
    }
  }
}

// One float32 sum of a million equal terms is wrong by 1 %.
TEST_P(ColumnSum, LongSumsKeepTheirDigits) {
  constexpr std::int64_t rows = 1'000'000;
  const Tensor matrix = tensor_of(std::vector<double>(rows, 0.1), {rows, 1}, DType::float32),
               target = Tensor::empty({1}, DType::float32, device());
  ops::column_sum(stream(), matrix, {target, GradientMode::overwrite});
  EXPECT_NEAR(target.to_vector<float>()[0], rows * static_cast<double>(0.1f), 10);
}

TEST_P(ColumnSum, ZeroRowsGiveZeroAndBitsDoNotDependOnThreadCount) {
  const Tensor target = Tensor::from<float>({1, 2, 3}, {3}, device());
  ops::column_sum(stream(), Tensor::empty({0, 3}, DType::float32, device()), {target, GradientMode::overwrite});
  EXPECT_EQ(target.to_vector<float>(), std::vector<float>(3));
  const Tensor matrix = tensor_of(normal_values(1000 * 300, "threads"), {1000, 300}, DType::float32);
  const Tensor one = Tensor::empty({300}, DType::float32, device()),
               five = Tensor::empty({300}, DType::float32, device());
  {
    const WithThreads threads(1);
    ops::column_sum(stream(), matrix, {one, GradientMode::overwrite});
  }
  {
    const WithThreads threads(5);
    ops::column_sum(stream(), matrix, {five, GradientMode::overwrite});
  }
  EXPECT_TRUE(same_bits(one, five));
  EXPECT_THROW(ops::column_sum(stream(), matrix, {target, GradientMode::overwrite}), ContractError);
}

}  // namespace
}  // namespace furlong
