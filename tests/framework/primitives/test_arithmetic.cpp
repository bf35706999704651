#include "framework/primitives/arithmetic.h"

#include "tests/framework/ops/op_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class Arithmetic : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Arithmetic);

/// Columns [2, 2 + columns) of a matrix, and the matrix.
struct Part {
  Tensor whole, part;
  Part(std::int64_t rows, std::int64_t columns, DType dtype, const char* name)
      : whole(tensor_of(normal_values(rows * (columns + 5), name), {rows, columns + 5}, dtype)),
        part(whole.narrow(1, 2, columns)) {}
};

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST_P(Arithmetic, FillsOnlyTheGivenView) {
  for (DType dtype : float_dtypes) {
    const Part target(3, 7, dtype, "fill");
    const std::vector<double> before = values_of(target.whole);
    ops::fill(stream(), target.part, -2.5);
    const std::vector<double> after = values_of(target.whole);
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i], i % 12 >= 2 && i % 12 < 9 ? -2.5 : before[i]);
    ops::fill(stream(), target.whole, 1.0);
    EXPECT_EQ(values_of(target.whole), std::vector<double>(36, 1.0));
    ops::fill(stream(), Tensor::empty({0, 3}, dtype, device()), 1.0);
  }
  EXPECT_THROW(ops::fill(stream(), Tensor::empty({3, 4}, DType::float32, device()).permute({1, 0}), 0.0),
               ContractError);
}

TEST_P(Arithmetic, AddsConvertsAndScalesBetweenAllTypes) {
  for_each_instruction_set([] {
    for (DType from : float_dtypes) {
      for (DType to : float_dtypes) {
        for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 3}, {5, 33}, {2, 64}}) {
          for (GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
            for (double scale : {1.0, -0.375}) {
              const Part source(rows, columns, from, "source"), target(rows, columns, to, "target");
              const std::vector<double> added = values_of(source.part), before = values_of(target.part),
                                        around = values_of(target.whole);
              ops::add(stream(), target.part, source.part, mode, scale);
              const std::vector<double> after = values_of(target.part);
              std::vector<double> expected(after.size());
              for (std::size_t i = 0; i < after.size(); ++i)
                expected[i] = mode == GradientMode::skip
                                  ? before[i]
                                  : added[i] * scale + (mode == GradientMode::accumulate ? before[i] : 0);
              // A product, a sum and a store, each rounded once, in the wider of float32 and the two types.
              const bool exact =
                  mode == GradientMode::skip || (mode == GradientMode::overwrite && scale == 1.0 && from == to);
              for (std::size_t i = 0; i < after.size(); ++i) {
                const double size = std::abs(added[i] * scale) + std::abs(before[i]);
                const double bound =
                    exact ? 0
                          : 2 * rounding_unit(DType::float32) * size + rounding_unit(to) * std::abs(expected[i]) * 1.01;
                ASSERT_LE(std::abs(after[i] - expected[i]), bound)
                    << name_of(from) << " to " << name_of(to) << " element " << i;
              }
              ops::fill(stream(), target.part, 0.0);
              std::vector<double> beside = values_of(target.whole);
              for (std::size_t i = 0; i < beside.size(); ++i) {
                const std::size_t column = i % static_cast<std::size_t>(columns + 5);
                if (column < 2 || column >= static_cast<std::size_t>(columns) + 2) {
                  ASSERT_EQ(beside[i], around[i]);
                }
              }
            }
          }
        }
      }
    }
  });
}

TEST_P(Arithmetic, ConvertsBfloat16ExactlyAndFloat32ToNearest) {
  for_each_instruction_set([] {
    std::vector<bfloat16> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
    const Tensor narrow = Tensor::from(all, {65536}, device()), wide = Tensor::empty({65536}, DType::float32, device()),
                 back = Tensor::empty({65536}, DType::bfloat16, device());
    ops::convert(stream(), wide, narrow);
    ops::convert(stream(), back, wide);
    const auto floats = wide.to_vector<float>();
    const auto again = back.to_vector<bfloat16>();
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(same_value(floats[i], static_cast<float>(all[i]))) << i;
      ASSERT_TRUE(std::isnan(floats[i]) ? std::isnan(static_cast<float>(again[i])) : again[i].bits == i) << i;
    }
    // Midpoints and their neighbors, and NaNs whose payload would be rounded away or carry into the sign.
    std::vector<float> hard;
    for (std::uint32_t upper = 0; upper < 65536; upper += 7) {
      for (std::uint32_t lower : {1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
        hard.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
    const auto n = static_cast<std::int64_t>(hard.size());
    const Tensor rounded = Tensor::empty({n}, DType::bfloat16, device());
    ops::convert(stream(), rounded, Tensor::from(hard, {n}, device()));
    const auto found = rounded.to_vector<bfloat16>();
    for (std::size_t i = 0; i < hard.size(); ++i) {
      const bfloat16 expected(hard[i]);
      ASSERT_TRUE(std::isnan(hard[i]) ? std::isnan(static_cast<float>(found[i])) : found[i].bits == expected.bits)
          << hard[i];
    }
  });
}

TEST_P(Arithmetic, ScalesInPlace) {
  const Tensor tensor = tensor_of(normal_values(1000, "scale"), {1000}, DType::float32);
  std::vector<double> expected = values_of(tensor);
  for (double& value : expected) value *= 0.5;
  ops::add(stream(), tensor, tensor, GradientMode::overwrite, 0.5);
  EXPECT_EQ(values_of(tensor), expected);
  for (double& value : expected) value *= 2;
  ops::add(stream(), tensor, tensor, GradientMode::accumulate);
  EXPECT_EQ(values_of(tensor), expected);
}

TEST_P(Arithmetic, RejectsMismatchedShapes) {
  const Tensor a = Tensor::zeros({2, 3}, DType::float32, device());
  EXPECT_THROW(ops::add(stream(), a, Tensor::zeros({3, 2}, DType::float32, device()), GradientMode::overwrite),
               ContractError);
  EXPECT_THROW(
      ops::add(stream(), a, Tensor::zeros({3, 2}, DType::float32, device()).permute({1, 0}), GradientMode::overwrite),
      ContractError);
  EXPECT_THROW(ops::add(stream(), a, Tensor::zeros({2, 3}, DType::int32, device()), GradientMode::overwrite),
               ContractError);
  const Device other{device().type == DeviceType::cuda ? DeviceType::simulated : DeviceType::cuda, 0};
  EXPECT_THROW(ops::add(Stream{other}, a, a, GradientMode::overwrite), ContractError);
}

TEST_P(Arithmetic, CountsNonFiniteElements) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for_each_instruction_set([&] {
    for (DType dtype : float_dtypes) {
      std::vector<double> values = normal_values(77, "finite");
      values[0] = nan;
      values[11] = -infinity;
      values[76] = infinity;
      const Tensor tensor = tensor_of(values, {7, 11}, dtype);
      EXPECT_EQ(ops::count_non_finite(stream(), tensor), 3);
      EXPECT_EQ(ops::count_non_finite(stream(), tensor.narrow(1, 1, 9)), 0);  // 11 is in column 0
    }
  });
}

TEST_P(Arithmetic, SumsSquaresInDoubleForAnyThreadCount) {
  for (DType dtype : float_dtypes) {
    const std::int64_t n = 100003;
    const Tensor tensor = tensor_of(normal_values(n, "squares", 1e3), {n}, dtype);
    long double expected = 0;
    for (double value : values_of(tensor)) expected += static_cast<long double>(value) * value;
    const auto sum_with = [&](int threads) {
      const WithThreads with(threads);
      return ops::sum_of_squares(stream(), tensor);
    };
    const double one = sum_with(1);
    // Blocks of 4096 and then of 25: at most some 4100 roundings in a row, and all terms are positive.
    EXPECT_NEAR(one, static_cast<double>(expected),
                4200 * rounding_unit(DType::float64) * static_cast<double>(expected));
    EXPECT_EQ(sum_with(2), one);
    EXPECT_EQ(sum_with(5), one);
  }
  EXPECT_EQ(ops::sum_of_squares(stream(), Tensor::from<float>({1e30f, 1e30f}, {2}, device())),
            2 * std::pow(static_cast<double>(1e30f), 2));
  EXPECT_EQ(ops::sum_of_squares(stream(), Tensor::empty({0}, DType::float32, device())), 0.0);
  EXPECT_THROW(ops::sum_of_squares(stream(), Tensor::empty({3, 4}, DType::float32, device()).narrow(1, 0, 2)),
               ContractError);
}

TEST_P(Arithmetic, SumOfSquaresStaysOnTheDevice) {
  // More blocks of elements than a GPU launch has thread blocks; every partial sum is exact in double.
  const std::int64_t n = (on_sanitized_simulator() ? 5 : 2049) * 4096 + 77;
  const Tensor values = Tensor::from(std::vector<float>(static_cast<std::size_t>(n), 0.5f), {n}, device()),
               result = Tensor::empty({3}, DType::float64, device());
  ops::fill(stream(), result, -1);
  ops::sum_of_squares(stream(), values, result.narrow(0, 1, 1));
  EXPECT_EQ(values_of(result), (std::vector<double>{-1, 0.25 * static_cast<double>(n), -1}));
  EXPECT_THROW(ops::sum_of_squares(stream(), values, result), ContractError);
  EXPECT_THROW(ops::sum_of_squares(stream(), values, Tensor::empty({1}, DType::float32, device())), ContractError);
}

TEST(ArithmeticShapes, ShapeOnlyAccessesNoMemory) {
  const Stream nowhere{Device{DeviceType::shape_only, 0}};
  const Tensor a = Tensor::empty({1000, 1000}, DType::float32, nowhere.device),
               b = Tensor::empty({1000, 1000}, DType::bfloat16, nowhere.device);
  ops::fill(nowhere, a, 1.0);
  ops::add(nowhere, a, b, GradientMode::accumulate);
  EXPECT_EQ(ops::count_non_finite(nowhere, a), 0);
  EXPECT_EQ(ops::sum_of_squares(nowhere, a), 0.0);
  EXPECT_THROW(ops::add(nowhere, a, b.narrow(0, 0, 5), GradientMode::accumulate), ContractError);
}

}  // namespace
}  // namespace furlong
