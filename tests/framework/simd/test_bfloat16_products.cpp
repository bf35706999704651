// Products of packed bfloat16 operands against sums in double of the rounded operands.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "framework/core/dtype.h"
#include "framework/primitives/cpu_isa.h"

namespace furlong::simd {
namespace {

constexpr float untouched = 1234.5f;

/// A matrix with rows `ld` apart; elements between the rows are NaN.
struct Matrix {
  std::int64_t rows, columns, ld;
  std::vector<float> values;

  Matrix(std::int64_t n_rows, std::int64_t n_columns, unsigned seed)
      : rows(n_rows), columns(n_columns), ld(n_columns + 3), values(static_cast<std::size_t>(n_rows * ld), NAN) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) (*this)(i, j) = normal(generator);
    }
  }
  float& operator()(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * ld + j)]; }
  double rounded(std::int64_t i, std::int64_t j) const {
    return static_cast<double>(bfloat16(values[static_cast<std::size_t>(i * ld + j)]));
  }
};

class BFloat16ProductsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels_) GTEST_SKIP() << "the instruction sets in use have no bfloat16 products";
  }

  enum class Left : std::uint8_t { rows, transposed };
  enum class Right : std::uint8_t { rows, transposed };

  /// Returns c [M, N], rows N + 2 apart, of a [M, K] (or [K, M]) and b [K, N] (or [N, K]).
  std::vector<float> product(const Matrix& a, Left left, const Matrix& b, Right right, bool accumulate) const {
    const std::int64_t M = left == Left::rows ? a.rows : a.columns, K = left == Left::rows ? a.columns : a.rows;
    const std::int64_t N = right == Right::rows ? b.columns : b.rows;
    const std::int64_t lda = left == Left::rows ? pairs_of(K) + 1 : M + 1, ldb = (N + 15) / 16 * 16;
    std::vector<BFloat16Pair> packed_a(static_cast<std::size_t>(lda * std::max(M, pairs_of(K))), {0x7fc07fc0u}),
        packed_b(static_cast<std::size_t>(ldb * pairs_of(K)), {0x7fc07fc0u});
    std::vector<float> c(static_cast<std::size_t>(M * (N + 2)), untouched);
    if (left == Left::rows) {
      kernels_->pack_rows(M, K, a.values.data(), a.ld, packed_a.data(), lda);
    } else {
      kernels_->pack_row_pairs(0, K, M, a.values.data(), a.ld, packed_a.data(), lda);
    }
    if (right == Right::rows) {
      kernels_->pack_row_pairs(0, K, N, b.values.data(), b.ld, packed_b.data(), ldb);
    } else {
      kernels_->pack_transposed(N, K, b.values.data(), b.ld, packed_b.data(), ldb);
    }
    const auto multiply = left == Left::rows ? kernels_->multiply : kernels_->multiply_transposed;
    multiply(M, N, K, packed_a.data(), lda, packed_b.data(), ldb, c.data(), N + 2, accumulate);
    return c;
  }

  const BFloat16Products* kernels_ = ops::bfloat16_products();
};

TEST_F(BFloat16ProductsTest, MatchesSumsOfRoundedOperands) {
  for (const std::int64_t M : {0, 1, 2, 5, 16, 33}) {
    for (const std::int64_t N : {0, 1, 15, 16, 40, 64, 70, 100, 130}) {
      for (const std::int64_t K : {0, 1, 2, 17, 31, 64, 65}) {
        for (const auto left : {Left::rows, Left::transposed}) {
          for (const auto right : {Right::rows, Right::transposed}) {
            const Matrix a = left == Left::rows ? Matrix(M, K, 1) : Matrix(K, M, 1);
            const Matrix b = right == Right::rows ? Matrix(K, N, 2) : Matrix(N, K, 2);
            const bool accumulate = (M + K) % 2 == 0;
            const std::vector<float> c = product(a, left, b, right, accumulate);
            for (std::int64_t i = 0; i < M; ++i) {
              for (std::int64_t j = 0; j < N + 2; ++j) {
                double exact = accumulate || j >= N ? static_cast<double>(untouched) : 0, size = std::fabs(exact);
                for (std::int64_t k = 0; k < K && j < N; ++k) {
                  const double term = (left == Left::rows ? a.rounded(i, k) : a.rounded(k, i)) *
                                      (right == Right::rows ? b.rounded(k, j) : b.rounded(j, k));
                  exact += term;
                  size += std::fabs(term);
                }
                const auto found = static_cast<double>(c[static_cast<std::size_t>(i * (N + 2) + j)]);
                ASSERT_LE(std::fabs(found - exact), j < N ? 3e-7 * size : 0)
                    << M << " x " << N << " x " << K << " at " << i << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(BFloat16ProductsTest, ElementDependsOnItsRowAndColumnAlone) {
  const std::int64_t M = 33, N = 100;
  for (const std::int64_t K : {37, 64}) {  // AMX has whole tiles of 32 elements
    Matrix a(M, K, 1), b(K, N, 2);
    const std::vector<float> whole = product(a, Left::rows, b, Right::rows, false);
    for (const std::int64_t row : {0, 5, 32}) {
      Matrix one(1, K, 1);
      for (std::int64_t k = 0; k < K; ++k) one(0, k) = a(row, k);
      const std::vector<float> alone = product(one, Left::rows, b, Right::rows, false);
      for (std::int64_t j = 0; j < N; ++j)
        EXPECT_EQ(alone[static_cast<std::size_t>(j)], whole[static_cast<std::size_t>(row * (N + 2) + j)]) << row;
    }
    for (std::int64_t k = 0; k < K; ++k) a(7, k) = b(k, 20) = INFINITY;
    const std::vector<float> changed = product(a, Left::rows, b, Right::rows, false);
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t j = 0; j < N; ++j) {
        const auto at = static_cast<std::size_t>(i * (N + 2) + j);
        if (i != 7 && j != 20) {
          EXPECT_EQ(changed[at], whole[at]) << i << ", " << j;
        } else {
          EXPECT_FALSE(std::isfinite(changed[at])) << i << ", " << j;
        }
      }
    }
  }
}

TEST_F(BFloat16ProductsTest, KeptRegistersChangeNoBit) {
  const Matrix a(33, 70, 1), b(70, 40, 2);
  const std::vector<float> alone = product(a, Left::rows, b, Right::rows, false);
  for (int times = 0; times < 2; ++times) {
    const KeptRegisters kept(*kernels_);
    for (int product_of_two = 0; product_of_two < 2; ++product_of_two) {
      const std::vector<float> found = product(a, Left::rows, b, Right::rows, false);
      EXPECT_EQ(std::memcmp(found.data(), alone.data(), alone.size() * sizeof(float)), 0);
    }
  }
  const std::vector<float> after = product(a, Left::rows, b, Right::rows, false);
  EXPECT_EQ(std::memcmp(after.data(), alone.data(), alone.size() * sizeof(float)), 0);
}

TEST_F(BFloat16ProductsTest, PackedRowsBecomeRightOperands) {
  for (const std::int64_t rows : {1, 2, 7, 33}) {
    for (const std::int64_t columns : {1, 16, 31, 32, 47, 70}) {
      const Matrix source(rows, columns, 6);
      const std::int64_t ld_rows = pairs_of(columns) + 3, ld_pairs = columns + 5, ld_transposed = (rows + 15) / 16 * 16;
      const BFloat16Pair untouched_pair{0x7fc07fc0u};
      std::vector<BFloat16Pair> packed(static_cast<std::size_t>(ld_rows * rows), untouched_pair);
      kernels_->pack_rows(rows, columns, source.values.data(), source.ld, packed.data(), ld_rows);
      const auto check = [&](std::int64_t ld, std::int64_t pairs, const auto& expect, const auto& convert) {
        std::vector<BFloat16Pair> expected(static_cast<std::size_t>(ld * pairs), untouched_pair), found = expected;
        expect(source.values.data(), source.ld, expected.data(), ld);
        convert(packed.data(), ld_rows, found.data(), ld);
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(BFloat16Pair)), 0)
            << rows << " x " << columns;
      };
      check(
          ld_pairs, pairs_of(rows),
          [&](auto... arguments) { kernels_->pack_row_pairs(0, rows, columns, arguments...); },
          [&](auto... arguments) { kernels_->pair_rows(rows, columns, arguments...); });
      check(
          ld_transposed, pairs_of(columns),
          [&](auto... arguments) { kernels_->pack_transposed(rows, columns, arguments...); },
          [&](auto... arguments) { kernels_->transpose_rows(rows, columns, arguments...); });
    }
  }
}

TEST_F(BFloat16ProductsTest, PartsAddUpToTheSource) {
  for (const std::int64_t rows : {1, 16, 33}) {
    for (const std::int64_t columns : {1, 16, 31, 70}) {
      Matrix source(rows, columns, 5);
      source(0, 0) = 0;
      source(rows - 1, columns - 1) = INFINITY;
      source(rows / 2, columns / 2) = -3.4e38f;  // would round to infinity
      const auto check = [&](std::int64_t ld, const auto& split, const auto& part_of) {
        std::vector<BFloat16Pair> high(static_cast<std::size_t>(ld * (rows + columns)), {0x7fc07fc0u}), low = high;
        split(source.values.data(), source.ld, high.data(), low.data(), ld);
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < columns; ++j) {
            const float value = source(i, j), sum = part_of(high, i, j) + part_of(low, i, j);
            if (std::isinf(value)) {
              EXPECT_FALSE(std::isfinite(sum));
            } else {
              EXPECT_LE(std::fabs(sum - value), 0x1p-16f * std::fabs(value)) << i << ", " << j;
            }
          }
        }
      };
      const auto element = [](BFloat16Pair pair, std::int64_t odd) {
        bfloat16 value;
        value.bits = static_cast<std::uint16_t>(pair.bits >> (odd ? 16 : 0));
        return static_cast<float>(value);
      };
      const std::int64_t ld = (columns + 15) / 16 * 16, ld_t = (rows + 15) / 16 * 16;
      check(
          ld, [&](auto... arguments) { kernels_->split_row_pairs(rows, columns, arguments...); },
          [&](const std::vector<BFloat16Pair>& part, std::int64_t i, std::int64_t j) {
            return element(part[static_cast<std::size_t>(i / 2 * ld + j)], i % 2);
          });
      check(
          ld_t, [&](auto... arguments) { kernels_->split_transposed(rows, columns, arguments...); },
          [&](const std::vector<BFloat16Pair>& part, std::int64_t i, std::int64_t j) {
            return element(part[static_cast<std::size_t>(j / 2 * ld_t + i)], j % 2);
          });
    }
  }
}

TEST_F(BFloat16ProductsTest, PartsMultiplyTogether) {
  for (const std::int64_t M : {1, 16, 33}) {
    for (const std::int64_t N : {15, 32, 70}) {
      for (const std::int64_t K : {1, 31, 64, 600}) {
        const Matrix a(M, K, 1), b(K, N, 2);
        const std::int64_t lda = pairs_of(K), ldb = (N + 15) / 16 * 16;
        std::vector<BFloat16Pair> left(static_cast<std::size_t>(lda * M)), high(static_cast<std::size_t>(ldb * lda)),
            low = high;
        kernels_->pack_rows(M, K, a.values.data(), a.ld, left.data(), lda);
        kernels_->split_row_pairs(K, N, b.values.data(), b.ld, high.data(), low.data(), ldb);
        for (const bool accumulate : {false, true}) {
          std::vector<float> c(static_cast<std::size_t>(M * N), untouched);
          kernels_->multiply_parts(M, N, K, left.data(), lda, high.data(), low.data(), ldb, c.data(), N, accumulate);
          for (std::int64_t i = 0; i < M; ++i) {
            for (std::int64_t j = 0; j < N; ++j) {
              double exact = accumulate ? static_cast<double>(untouched) : 0, size = std::fabs(exact);
              for (std::int64_t k = 0; k < K; ++k) {
                const double term =
                    a.rounded(i, k) * static_cast<double>(b.values[static_cast<std::size_t>(k * b.ld + j)]);
                exact += term;
                size += std::fabs(term);
              }
              // 2^-16 of the parts, and the sums in float32.
              ASSERT_LE(std::fabs(static_cast<double>(c[static_cast<std::size_t>(i * N + j)]) - exact), 1.6e-5 * size)
                  << M << " x " << N << " x " << K << " at " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

TEST_F(BFloat16ProductsTest, RowsOutsideTheRangeAreZero) {
  Matrix source(8, 20, 3);
  for (const std::int64_t row : {2, 7}) {
    for (std::int64_t j = 0; j < 20; ++j) source(row, j) = NAN;
  }
  std::vector<BFloat16Pair> packed(4 * 20, {0xffffffffu});
  kernels_->pack_row_pairs(3, 7, 20, source.values.data(), source.ld, packed.data(), 20);
  for (std::int64_t pair = 0; pair < 4; ++pair) {
    for (std::int64_t j = 0; j < 20; ++j) {
      const std::uint32_t bits = packed[static_cast<std::size_t>(pair * 20 + j)].bits;
      if (pair == 0) {
        EXPECT_EQ(bits, 0xffffffffu);
        continue;
      }
      const auto expected = [&](std::int64_t row) {
        return row >= 3 && row < 7 ? static_cast<std::uint32_t>(bfloat16(source(row, j)).bits) : 0u;
      };
      EXPECT_EQ(bits & 0xffffu, expected(2 * pair)) << pair << ", " << j;
      EXPECT_EQ(bits >> 16, expected(2 * pair + 1)) << pair << ", " << j;
    }
  }
}

}  // namespace
}  // namespace furlong::simd
