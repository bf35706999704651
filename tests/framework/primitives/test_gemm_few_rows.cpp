// Products of one or two rows, for which the CPU uses other code than for larger ones.
#include "framework/primitives/gemm.h"

#include "tests/framework/primitives/gemm_testing.h"
#include "tests/reference/activation.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class FewRows : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(FewRows);

constexpr Sizes few_rows[] = {{1, 70, 65}, {2, 33, 130}, {2, 1, 576}, {3, 33, 130}};

TEST_P(FewRows, BiasActivationAndColumnRangesMatchManyRows) {
  for (const Sizes& sizes : few_rows) {
    for (GemmActivation activation : gemm_activations) {
      for (bool with_bias : {false, true}) {
        for (bool strided : {false, true}) {
          const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(all_types[0], sizes, false, true));
          const Operands in(all_types[0], sizes, false, true, strided);
          const Tensor bias = tensor_of(normal_values(sizes.columns, "bias"), {sizes.columns}, DType::float32);
          const std::vector<double> added = values_of(bias), around = values_of(in.whole_c);
          auto expected =
              reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
          for (std::size_t i = 0; i < expected.value.size(); ++i) {
            const double term = with_bias ? added[i % added.size()] : 0;
            expected.value[i] = reference::activation_after_product(activation, expected.value[i] + term);
            expected.magnitude[i] += std::abs(term);
          }
          ops::gemm(stream(), in.a, false, in.b, true, in.c, GradientMode::overwrite,
                    {with_bias ? &bias : nullptr, activation});
          const double own = activation == GemmActivation::none || activation == GemmActivation::relu
                                 ? 0
                                 : 8 * rounding_unit(DType::float32);
          EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1,
                                     DType::float32, own),
                    1);
          const std::vector<double> after = values_of(in.whole_c);
          const std::int64_t margin = strided ? 3 : 0, width = sizes.columns + 2 * margin;
          for (std::size_t i = 0; i < around.size(); ++i) {
            const std::int64_t column = static_cast<std::int64_t>(i) % width;
            if (column < margin || column >= sizes.columns + margin) {
              ASSERT_EQ(after[i], around[i]) << "element " << i << " outside the range changed";
            }
          }
        }
      }
    }
  }
}

/// One term outweighs the others: in a single chain that starts with it each of them is rounded away, because 2^24 + 1
/// is 2^24 in float32. Such rows occur in generation (a token that all others attend to has one activation in the
/// thousands). Parallel partial sums keep most of the small terms.
TEST(FewRowsOnTheCpu, LargeTermDoesNotAbsorbTheOthers) {
  constexpr std::int64_t inner = 1536, columns = 40;
  for (std::int64_t rows : {1, 2}) {
    std::vector<double> values(static_cast<std::size_t>(rows * inner), 1.0);
    for (std::int64_t row = 0; row < rows; ++row) values[static_cast<std::size_t>(row * inner)] = 0x1p24;
    const Tensor a = tensor_of(values, {rows, inner}, DType::float32);
    const Tensor b = tensor_of(std::vector<double>(static_cast<std::size_t>(columns * inner), 1.0), {columns, inner},
                               DType::float32);
    const Tensor c = Tensor::empty({rows, columns}, DType::float32, Device{});
    ops::gemm(Stream{Device{}}, a, false, b, true, c, GradientMode::overwrite);
    for (double value : values_of(c)) EXPECT_GE(value - 0x1p24, 0.5 * (inner - 1)) << rows << " rows";
  }
}

/// Returns a stream with or without short sums.
Stream stream_of(bool short_sums) {
  Stream stream;
  stream.products.short_sums = short_sums;
  return stream;
}

TEST(ShortSums, HaveSmallerErrorThanOneChain) {
  constexpr std::int64_t rows = 48, inner = 1536, columns = 64;
  const auto error = [&](bool short_sums, bool transpose_a, bool transpose_b) {
    const Operands in(all_types[0], {rows, columns, inner}, transpose_a, transpose_b, false);
    const auto expected = reference::product(in.values_a, transpose_a, in.values_b, transpose_b, rows, columns, inner);
    ops::gemm(stream_of(short_sums), in.a, transpose_a, in.b, transpose_b, in.c, GradientMode::overwrite);
    double sum = 0;
    const std::vector<double> found = values_of(in.c);
    for (std::size_t i = 0; i < found.size(); ++i)
      sum += (found[i] - expected.value[i]) * (found[i] - expected.value[i]);
    return std::sqrt(sum / static_cast<double>(found.size()));
  };
  // A chain of k standard normal products has an error of about 0.29 ulp per addition, of sums up to sqrt(k): in total
  // 0.3 k / sqrt(2) units of 2^-24. Six chains of 256 give 130, one of 1536 gives 330, which oneDNN has with AVX-512;
  // without AVX-512 it uses other blocks.
  const double unit = 0x1p-24;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      const double short_sums = error(true, transpose_a, transpose_b);
      EXPECT_LT(short_sums, 200 * unit);
      EXPECT_LT(short_sums, 1.1 * error(false, transpose_a, transpose_b));
    }
  }
}

TEST(ShortSums, SupportBiasActivationAndAccumulation) {
  constexpr std::int64_t rows = 5, inner = 600, columns = 37;
  const Operands in(all_types[0], {rows, columns, inner}, false, true, true);
  const Tensor bias = tensor_of(normal_values(columns, "bias"), {columns}, DType::float32);
  for (GemmActivation activation : gemm_activations) {
    ops::gemm(Stream{Device{}}, in.a, false, in.b, true, in.c, GradientMode::overwrite, {&bias, activation});
    const std::vector<double> once = values_of(in.c);
    ops::gemm(Stream{Device{}}, in.a, false, in.b, true, in.c, GradientMode::accumulate);
    const std::vector<double> twice = values_of(in.c);
    ops::gemm(stream_of(true), in.a, false, in.b, true, in.c, GradientMode::overwrite, {&bias, activation});
    const std::vector<double> short_once = values_of(in.c);
    ops::gemm(stream_of(true), in.a, false, in.b, true, in.c, GradientMode::accumulate);
    const std::vector<double> short_twice = values_of(in.c);
    // Sums of 600 products of standard normals are about 25, few above 64. Additions to them round by up to 2^-19:
    // 600 of them have a standard deviation of 3e-5, twice that if they begin with a sum.
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_NEAR(short_once[i], once[i], 1e-4);
      EXPECT_NEAR(short_twice[i], twice[i], 2e-4);
    }
  }
}

}  // namespace
}  // namespace furlong
