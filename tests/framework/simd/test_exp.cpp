// The vectorized exponential against the C library's, over its whole range, for every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/framework/simd/test_exp.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simd::HWY_NAMESPACE {

template <class T>
void exponentials(const T* x, T* y, std::int64_t n) {
  const typename Lanes<T>::D d;
  for_lanes<T>(
      n, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR { store_n(exp(d, load_n(x + i, lanes)), y + i, lanes); });
}
void FloatExponentials(const float* x, float* y, std::int64_t n) { exponentials(x, y, n); }
void DoubleExponentials(const double* x, double* y, std::int64_t n) { exponentials(x, y, n); }

}  // namespace furlong::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/framework/ops/op_testing.h"

namespace furlong::simd {
HWY_EXPORT(FloatExponentials);
HWY_EXPORT(DoubleExponentials);

namespace {

std::vector<float> exponentials(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(FloatExponentials)(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

TEST(Exp, FloatIsWithin101HundredthsOfAnUlp) {
  std::vector<float> x;
  for (double value = -87.3365; value < 88.7228; value += 3.7e-4) x.push_back(static_cast<float>(value));
  for (double value = 1e-9; value < 1; value *= 1.01) {
    x.push_back(static_cast<float>(value));
    x.push_back(static_cast<float>(-value));
  }
  testing::for_each_instruction_set([&] {
    const std::vector<float> y = exponentials(x);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const float nearest = static_cast<float>(exact);
      const double ulp = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - static_cast<double>(nearest);
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp);
    }
    EXPECT_LT(worst, 1.01);
  });
}

TEST(Exp, FloatSaturatesAtItsLimits) {
  const float infinity = std::numeric_limits<float>::infinity();
  testing::for_each_instruction_set([&] {
    const std::vector<float> y = exponentials(
        {0.0f, -0.0f, -88.0f, -1e30f, -infinity, 89.0f, 1e30f, infinity, std::nanf(""), 88.7228f, -87.3365f});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    for (const std::size_t i : {2, 3, 4}) EXPECT_EQ(y[i], 0) << i;
    for (const std::size_t i : {5, 6, 7}) EXPECT_GT(y[i], 3.4e38f) << i;  // the largest finite numbers, no NaN
    for (const std::size_t i : {5, 6, 7}) EXPECT_TRUE(std::isfinite(y[i])) << i;
    EXPECT_TRUE(std::isnan(y[8]));
    EXPECT_GT(y[9], 3.4e38f);
    EXPECT_GE(y[10], std::numeric_limits<float>::min());
  });
}

TEST(Exp, DoubleIsWithinOneUlp) {
  std::vector<double> x, y;
  for (double value = -707; value < 709; value += 0.0137) x.push_back(value);
  y.resize(x.size());
  testing::for_each_instruction_set([&] {
    HWY_DYNAMIC_DISPATCH(DoubleExponentials)(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(x[i]);  // the C library's, itself within one ulp
      ASSERT_LE(std::abs(y[i] - exact), 2 * (std::nextafter(exact, HUGE_VAL) - exact)) << x[i];
    }
  });
}

}  // namespace
}  // namespace furlong::simd
#endif
