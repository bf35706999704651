// The small products are compiled for every instruction set; each one that this machine supports is tested.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/framework/simd/test_small_gemm.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/simd/simd-inl.h"
#include "framework/simd/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::test::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

struct Operands {
  std::int64_t M, N, K, lda, ldb, ldc;
  bool accumulate;
};

template <class T>
void run(char kind, const Operands& o, const T* a, const T* b, T* c) {
  if (kind == 'n') small_gemm_nn<T>(o.M, o.N, o.K, a, o.lda, b, o.ldb, c, o.ldc, o.accumulate);
  if (kind == 't') small_gemm_tn<T>(o.M, o.N, o.K, a, o.lda, b, o.ldb, c, o.ldc, o.accumulate);
}
void RunFloat(char kind, const void* operands, const float* a, const float* b, float* c) {
  run(kind, *static_cast<const Operands*>(operands), a, b, c);
}
void RunDouble(char kind, const void* operands, const double* a, const double* b, double* c) {
  run(kind, *static_cast<const Operands*>(operands), a, b, c);
}
void TransposeFloat(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t lds, float* target,
                    std::int64_t ldt) {
  transpose<float>(rows, columns, source, lds, target, ldt);
}
void TransposeDouble(std::int64_t rows, std::int64_t columns, const double* source, std::int64_t lds, double* target,
                     std::int64_t ldt) {
  transpose<double>(rows, columns, source, lds, target, ldt);
}

}  // namespace furlong::test::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace furlong::test {
namespace {
HWY_EXPORT(RunFloat);
HWY_EXPORT(RunDouble);
HWY_EXPORT(TransposeFloat);
HWY_EXPORT(TransposeDouble);

struct Sizes {
  std::int64_t M, N, K, lda, ldb, ldc;
  bool accumulate;
};

/// Runs `body` once for each instruction set that both the build and this machine support.
template <class Body>
void for_each_target(const Body& body) {
  std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

template <class T>
std::vector<T> random_values(std::int64_t n, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = static_cast<T>(normal(generator));
  return values;
}

/// Compares with a sum in float64. The bound is the classical one for a chain of K multiply-adds: K·u·Σ|a||b|, where u
/// is half an ulp.
template <class T>
void check(char kind, std::int64_t M, std::int64_t N, std::int64_t K, bool accumulate) {
  SCOPED_TRACE(fmt::format("{} {}x{}x{} accumulate {}", kind, M, N, K, accumulate));
  const bool a_transposed = kind == 't';
  const std::int64_t a_rows = a_transposed ? K : M, a_columns = a_transposed ? M : K;
  const Sizes sizes{M, N, K, a_columns + 3, N + 5, N + 7, accumulate};
  const auto a = random_values<T>(a_rows * sizes.lda, 1), b = random_values<T>(K * sizes.ldb, 2);
  const auto before = random_values<T>(M * sizes.ldc, 3);
  auto c = before;
  if constexpr (sizeof(T) == 4) {
    HWY_DYNAMIC_DISPATCH(RunFloat)(kind, &sizes, a.data(), b.data(), c.data());
  } else {
    HWY_DYNAMIC_DISPATCH(RunDouble)(kind, &sizes, a.data(), b.data(), c.data());
  }
  const double u = sizeof(T) == 4 ? 0x1p-24 : 0x1p-53;
  for (std::int64_t i = 0; i < M; ++i) {
    for (std::int64_t j = 0; j < sizes.ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * sizes.ldc + j);
      if (j >= N) {
        ASSERT_EQ(c[at], before[at]) << "padding of row " << i << " was written";
        continue;
      }
      long double sum = accumulate ? before[at] : 0.0L, magnitude = std::abs(sum);
      for (std::int64_t k = 0; k < K; ++k) {
        const long double product =
            static_cast<long double>(
                a[static_cast<std::size_t>(a_transposed ? k * sizes.lda + i : i * sizes.lda + k)]) *
            b[static_cast<std::size_t>(k * sizes.ldb + j)];
        sum += product;
        magnitude += std::abs(product);
      }
      // One more rounding for each product if the instruction set has no fused multiply-add.
      ASSERT_LE(std::abs(static_cast<double>(c[at] - sum)), static_cast<double>(2 * (K + 1) * magnitude) * u)
          << "element " << i << ", " << j;
    }
  }
}

TEST(SmallGemm, MatchesReferenceForOddSizesInEveryInstructionSet) {
  for_each_target([] {
    for (const char kind : {'n', 't'}) {
      for (const bool accumulate : {false, true}) {
        for (const std::int64_t M : {1, 2, 5, 7, 13, 64}) {
          for (const std::int64_t N : {1, 3, 15, 16, 33, 47, 64, 83, 150}) {
            for (const std::int64_t K : {1, 2, 19, 64}) {
              check<float>(kind, M, N, K, accumulate);
              check<double>(kind, M, N, K, accumulate);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  });
}

TEST(SmallGemm, ElementBitsDependOnlyOnItsRowAndColumn) {
  for_each_target([] {
    constexpr std::int64_t M = 23, N = 71, K = 37;
    const auto a = random_values<float>(M * K, 4), b = random_values<float>(K * N, 5);
    std::vector<float> whole(M * N), part(1);
    const Sizes sizes{M, N, K, K, N, N, false};
    HWY_DYNAMIC_DISPATCH(RunFloat)('n', &sizes, a.data(), b.data(), whole.data());
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t j = 0; j < N; ++j) {
        const Sizes one{1, 1, K, K, N, 1, false};
        HWY_DYNAMIC_DISPATCH(RunFloat)('n', &one, a.data() + i * K, b.data() + j, part.data());
        ASSERT_EQ(part[0], whole[static_cast<std::size_t>(i * N + j)]) << i << ", " << j;
      }
    }
  });
}

TEST(SmallGemm, DepthZeroGivesZeroOrKeepsTheSum) {
  for_each_target([] {
    std::vector<float> c{1, 2, 3, 4};
    HWY_DYNAMIC_DISPATCH(RunFloat)
    ('n', &static_cast<const Sizes&>(Sizes{2, 2, 0, 1, 2, 2, true}), nullptr, nullptr, c.data());
    EXPECT_EQ(c, (std::vector<float>{1, 2, 3, 4}));
    HWY_DYNAMIC_DISPATCH(RunFloat)
    ('n', &static_cast<const Sizes&>(Sizes{2, 2, 0, 1, 2, 2, false}), nullptr, nullptr, c.data());
    EXPECT_EQ(c, (std::vector<float>{0, 0, 0, 0}));
  });
}

template <class T>
void check_transpose(std::int64_t rows, std::int64_t columns) {
  const std::int64_t lds = columns + 2, ldt = rows + 1;
  const auto source = random_values<T>(rows * lds, 6);
  std::vector<T> target(static_cast<std::size_t>(columns * ldt), T{-7});
  if constexpr (sizeof(T) == 4) {
    HWY_DYNAMIC_DISPATCH(TransposeFloat)(rows, columns, source.data(), lds, target.data(), ldt);
  } else {
    HWY_DYNAMIC_DISPATCH(TransposeDouble)(rows, columns, source.data(), lds, target.data(), ldt);
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < ldt; ++i) {
      ASSERT_EQ(target[static_cast<std::size_t>(j * ldt + i)],
                i < rows ? source[static_cast<std::size_t>(i * lds + j)] : T{-7})
          << rows << "x" << columns;
    }
  }
}

TEST(SmallGemm, TransposesOddSizes) {
  for_each_target([] {
    for (const std::int64_t rows : {1, 2, 3, 4, 9, 16, 31}) {
      for (const std::int64_t columns : {1, 2, 3, 4, 10, 17, 32}) {
        check_transpose<float>(rows, columns);
        check_transpose<double>(rows, columns);
      }
    }
  });
}

}  // namespace
}  // namespace furlong::test
#endif
