// The kernels that complement cuBLASLt: the tiled product, which CUDA uses only if cuBLASLt has no algorithm, and the
// separate epilogue.
#include "framework/primitives/gemm_kernels.h"
#include "tests/framework/primitives/gemm_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class GemmKernels : public EngineTest {};
FURLONG_INSTANTIATE_GPUS(GemmKernels);

constexpr std::pair<bool, bool> transposes[] = {{false, false}, {false, true}, {true, false}, {true, true}};
constexpr Sizes kernel_sizes[] = {{1, 1, 1}, {5, 1, 9}, {13, 17, 1}, {33, 37, 50}, {16, 16, 16}};

TEST_P(GemmKernels, TiledProductSupportsEveryTransposeDtypeAndStride) {
  for (const Types& types : all_types) {
    for (const Sizes& sizes : kernel_sizes) {
      for (const auto& [transpose_a, transpose_b] : transposes) {
        for (bool strided : {false, true}) {
          for (bool accumulate : {false, true}) {
            const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, transpose_a, transpose_b));
            const Operands in(types, sizes, transpose_a, transpose_b, strided);
            const std::vector<double> around = values_of(in.whole_c);
            auto expected = reference::product(in.values_a, transpose_a, in.values_b, transpose_b, sizes.rows,
                                               sizes.columns, sizes.inner);
            for (std::size_t i = 0; accumulate && i < expected.value.size(); ++i) {
              expected.value[i] += in.values_c[i];
              expected.magnitude[i] += std::abs(in.values_c[i]);
            }
            ops::gemm_tiled_gpu(stream(), in.a, transpose_a, in.b, transpose_b, in.c, accumulate, {});
            EXPECT_LE(
                error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output, 0),
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
}

/// Checks bias and activation after a product, computed by one of the two kernels.
void check_epilogues(bool fused) {
  const Sizes sizes{19, 300, 5};
  for (const Types& types : all_types) {
    for (DType bias_dtype : {types.output, accumulate_dtype(types.output)}) {
      for (GemmActivation activation : gemm_activations) {
        for (bool with_bias : {false, true}) {
          const ::testing::ScopedTrace trace(
              __FILE__, __LINE__,
              text_of(types, sizes, false, true) + fmt::format(", activation {}", static_cast<int>(activation)));
          const Operands in(types, sizes, false, true, true);
          const Tensor bias = tensor_of(normal_values(sizes.columns, "bias"), {sizes.columns}, bias_dtype);
          const std::vector<double> added = values_of(bias);
          auto expected =
              reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
          for (std::size_t i = 0; i < expected.value.size(); ++i) {
            const double of_bias = with_bias ? added[i % added.size()] : 0;
            expected.value[i] = reference::activation_after_product(activation, expected.value[i] + of_bias);
            expected.magnitude[i] += std::abs(of_bias);
          }
          const GemmEpilogue epilogue{with_bias ? &bias : nullptr, activation};
          if (fused) {
            ops::gemm_tiled_gpu(stream(), in.a, false, in.b, true, in.c, false, epilogue);
          } else {
            const Tensor product = Tensor::empty({sizes.rows, sizes.columns}, accumulate_dtype(types.output), device());
            ops::gemm_tiled_gpu(stream(), in.a, false, in.b, true, product, false, {});
            ops::gemm_epilogue_gpu(stream(), product, in.c, epilogue);
          }
          // erfc, exp and a division, each accurate to a few ulp.
          const double own = activation == GemmActivation::none || activation == GemmActivation::relu
                                 ? 0
                                 : 8 * rounding_unit(accumulate_dtype(types.output));
          EXPECT_LE(
              error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output, own),
              1);
        }
      }
    }
  }
}

TEST_P(GemmKernels, TiledProductFusesBiasAndActivation) { check_epilogues(true); }
TEST_P(GemmKernels, EpilogueRoundsOnceFromWideProduct) { check_epilogues(false); }

TEST_P(GemmKernels, EpilogueWorksInPlace) {
  const Tensor c = tensor_of({-1, 0, 2, 3, -4, 5}, {2, 3}, DType::float32),
               bias = tensor_of({1, 1, -3}, {3}, DType::float32);
  ops::gemm_epilogue_gpu(stream(), c, c, {&bias, GemmActivation::relu});
  EXPECT_EQ(values_of(c), (std::vector<double>{0, 1, 0, 4, 0, 2}));
}

TEST_P(GemmKernels, HandlesInfinitiesAndEmptySums) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : float_dtypes) {
    const Tensor a = tensor_of({1, 2, infinity, 1, 1, 1}, {3, 2}, dtype), b = tensor_of({1, 0, 0, 1}, {2, 2}, dtype);
    const Tensor c = Tensor::empty({3, 2}, dtype, device());
    ops::gemm_tiled_gpu(stream(), a, false, b, false, c, false, {});
    const std::vector<double> values = values_of(c);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(values[2], infinity);
    EXPECT_TRUE(std::isnan(values[3]));  // infinity times zero; the tile's padding must not make more of them
    EXPECT_EQ(values[5], 1);
    const Tensor none_a = Tensor::empty({3, 0}, dtype, device()), none_b = Tensor::empty({0, 2}, dtype, device());
    ops::gemm_tiled_gpu(stream(), none_a, false, none_b, false, c, true, {});
    EXPECT_EQ(values_of(c)[0], 1);
    ops::gemm_tiled_gpu(stream(), none_a, false, none_b, false, c, false, {});
    EXPECT_EQ(values_of(c), std::vector<double>(6));
  }
}

}  // namespace
}  // namespace furlong
