// bfloat16 products in float32 tiles, on every CPU, also where other code is faster.
#include "framework/core/arena.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm_kernels.h"
#include "tests/framework/primitives/gemm_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::gemm_in_float32_tiles;

// Fewer rows than a block; several tiles of rows; several groups of columns; several chains and chunks of terms.
constexpr Sizes tile_sizes[] = {{1, 1, 1}, {3, 130, 257}, {500, 70, 40}, {40, 300, 65}, {30, 20, 4400}};
constexpr std::pair<bool, bool> transposes[] = {{false, false}, {false, true}, {true, false}, {true, true}};
constexpr Types tile_types[] = {{DType::bfloat16, DType::float32}, {DType::bfloat16, DType::bfloat16}};

TEST(GemmTiles, OverwriteAndAccumulateColumnRangesForEveryTranspose) {
  for_each_instruction_set([&] {
    for (const Types& types : tile_types) {
      for (const Sizes& sizes : tile_sizes) {
        for (const auto& [transpose_a, transpose_b] : transposes) {
          const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, transpose_a, transpose_b));
          const Operands in(types, sizes, transpose_a, transpose_b, true);
          const std::vector<double> around = values_of(in.whole_c);
          auto expected = reference::product(in.values_a, transpose_a, in.values_b, transpose_b, sizes.rows,
                                             sizes.columns, sizes.inner);
          gemm_in_float32_tiles(in.a, transpose_a, in.b, transpose_b, in.c, true, {});
          auto sum = expected;
          for (std::size_t i = 0; i < sum.value.size(); ++i) {
            sum.value[i] += in.values_c[i];
            sum.magnitude[i] += std::abs(in.values_c[i]);
          }
          EXPECT_LE(error_over_bound(values_of(in.c), sum.value, sum.magnitude, sizes.inner + 1, types.output, 0), 1);
          gemm_in_float32_tiles(in.a, transpose_a, in.b, transpose_b, in.c, false, {});
          EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner, types.output, 0),
                    1);
          const std::vector<double> after = values_of(in.whole_c);
          const auto width = static_cast<std::size_t>(sizes.columns) + 6;
          for (std::size_t i = 0; i < around.size(); ++i) {
            if (i % width < 3 || i % width >= width - 3) {
              ASSERT_EQ(after[i], around[i]) << "element " << i;
            }
          }
        }
      }
    }
  });
}

TEST(GemmTiles, ApplyBiasAndActivationBeforeTheStore) {
  for (const Types& types : tile_types) {
    for (const Sizes& sizes : {Sizes{500, 70, 40}, Sizes{30, 20, 4400}}) {
      for (const DType bias_dtype : {DType::float32, DType::bfloat16}) {
        for (const GemmActivation activation : gemm_activations) {
          const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, false, true));
          const Operands in(types, sizes, false, true, false);
          const Tensor bias = tensor_of(normal_values(sizes.columns, "bias"), {sizes.columns}, bias_dtype);
          const std::vector<double> added = values_of(bias);
          auto expected =
              reference::product(in.values_a, false, in.values_b, true, sizes.rows, sizes.columns, sizes.inner);
          for (std::size_t i = 0; i < expected.value.size(); ++i) {
            const double term = added[i % added.size()];
            expected.value[i] = reference::activation_after_product(activation, expected.value[i] + term);
            expected.magnitude[i] += std::abs(term);
          }
          gemm_in_float32_tiles(in.a, false, in.b, true, in.c, false, {&bias, activation});
          EXPECT_LE(error_over_bound(values_of(in.c), expected.value, expected.magnitude, sizes.inner + 1, types.output,
                                     8 * rounding_unit(DType::float32)),
                    1);
        }
      }
    }
  }
}

TEST(GemmTiles, ElementDependsOnItsRowAndColumnAlone) {
  constexpr Sizes sizes{500, 300, 600};
  for_each_instruction_set([&] {
    for (const Types& types : tile_types) {
      for (const auto& [transpose_a, transpose_b] : transposes) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, text_of(types, sizes, transpose_a, transpose_b));
        const Operands in(types, sizes, transpose_a, transpose_b, false);
        // The last rows and columns of c; all others are not computed.
        const auto part = [&](std::int64_t rows, std::int64_t columns) {
          return in.c.narrow(0, sizes.rows - rows, rows).narrow(1, sizes.columns - columns, columns);
        };
        const auto product = [&](int threads, std::int64_t rows, std::int64_t columns) {
          const WithThreads with(threads);
          ops::fill(stream(), in.c, 0.0);
          gemm_in_float32_tiles(in.a.narrow(transpose_a ? 1 : 0, sizes.rows - rows, rows), transpose_a,
                                in.b.narrow(transpose_b ? 0 : 1, sizes.columns - columns, columns), transpose_b,
                                part(rows, columns), false, {});
        };
        product(1, sizes.rows, sizes.columns);
        const std::vector<double> whole = values_of(in.c), some = values_of(part(7, 299)),
                                  column = values_of(part(433, 1));
        product(5, sizes.rows, sizes.columns);
        EXPECT_EQ(values_of(in.c), whole);
        product(2, 7, 299);
        EXPECT_EQ(values_of(part(7, 299)), some);
        product(3, 433, 1);
        EXPECT_EQ(values_of(part(433, 1)), column);
      }
    }
  });
}

TEST(GemmTiles, ShapeOnlyProductAllocatesTheSameMemory) {
  const auto peak = [](const Device& device) {
    const Tensor a = Tensor::empty({500, 4400}, DType::bfloat16, device),
                 b = Tensor::empty({300, 4400}, DType::bfloat16, device),
                 c = Tensor::empty({500, 300}, DType::bfloat16, device);
    for (const Tensor& operand : {a, b}) ops::fill(Stream{device}, operand, 0.5);
    Arena& memory = arena(device);
    const auto before = memory.counters().bytes_in_use;
    memory.reset_peak();
    gemm_in_float32_tiles(a, false, b, true, c, false, {});
    return memory.counters().peak_bytes - before;
  };
  EXPECT_EQ(peak(Device{DeviceType::shape_only, 0}), peak(Device{}));
  EXPECT_GT(peak(Device{}), 256 * 4096 * 4);
}

}  // namespace
}  // namespace furlong
