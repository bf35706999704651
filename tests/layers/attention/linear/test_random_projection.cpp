#include "layers/attention/linear/random_projection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/core/dtype.h"
#include "framework/core/error.h"

namespace furlong::layers {
namespace {

constexpr double bfloat16_unit = 0x1p-8;  // largest relative error of rounding to bfloat16

RandomKey key_of(std::uint32_t step, std::uint64_t seed = 3) { return {seed, step, random_stream("directions")}; }

double dot(const std::vector<float>& rows, std::int64_t d, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t c = 0; c < d; ++c)
    sum += static_cast<double>(rows[static_cast<std::size_t>(i * d + c)]) *
           static_cast<double>(rows[static_cast<std::size_t>(j * d + c)]);
  return sum;
}
double norm(const std::vector<float>& rows, std::int64_t d, std::int64_t i) { return std::sqrt(dot(rows, d, i, i)); }

struct Moments {
  double mean, variance;
};
Moments moments(const std::vector<double>& values) {
  Moments result{0, 0};
  const double n = static_cast<double>(values.size());
  for (double value : values) result.mean += value / n;
  for (double value : values) result.variance += (value - result.mean) * (value - result.mean) / (n - 1);
  return result;
}

TEST(RandomProjection, KeyDeterminesValues) {
  for (const RandomProjectionKind kind : all_values<RandomProjectionKind>()) {
    const std::string name = name_of(kind);
    const std::vector<float> drawn = draw_random_projection(kind, 20, 8, key_of(0));
    ASSERT_EQ(drawn.size(), 160u) << name;
    EXPECT_EQ(draw_random_projection(kind, 20, 8, key_of(0)), drawn) << name;
    EXPECT_NE(draw_random_projection(kind, 20, 8, key_of(1)), drawn) << name;
    EXPECT_NE(draw_random_projection(kind, 20, 8, key_of(0, 4)), drawn) << name;
    EXPECT_NE(draw_random_projection(kind, 20, 8, {3, 0, random_stream("another layer")}), drawn) << name;
  }
}

TEST(RandomProjection, ValuesAreBFloat16) {
  for (const RandomProjectionKind kind : all_values<RandomProjectionKind>()) {
    const std::string name = name_of(kind);
    for (const auto& [m, d] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 3}, {40, 16}, {256, 64}}) {
      for (float value : draw_random_projection(kind, m, d, key_of(0))) {
        ASSERT_TRUE(std::isfinite(value)) << name;
        ASSERT_EQ(static_cast<float>(bfloat16(value)), value) << name;
      }
    }
  }
}

TEST(RandomProjection, RowsAreOrthogonalWithinBlocks) {
  for (const RandomProjectionKind kind : all_values<RandomProjectionKind>()) {
    const std::string name = name_of(kind);
    if (kind == RandomProjectionKind::iid) continue;
    for (const auto& [m, d] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {8, 8}, {11, 4}, {64, 64}, {150, 64}}) {
      const std::vector<float> rows = draw_random_projection(kind, m, d, key_of(0));
      double largest_between = 0;
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < i; ++j) {
          const double cosine = std::abs(dot(rows, d, i, j)) / (norm(rows, d, i) * norm(rows, d, j));
          if (i / d == j / d) {
            // Rounding changes each row by at most one unit: |ω_i · δ_j| + |δ_i · ω_j| over the norms.
            ASSERT_LE(cosine, 2 * bfloat16_unit + bfloat16_unit * bfloat16_unit)
                << name << ", rows " << i << " and " << j << " of " << m << " x " << d;
          } else {
            largest_between = std::max(largest_between, cosine);
          }
        }
      }
      if (m > d) {
        EXPECT_GT(largest_between, 0.1) << name << ": blocks repeat each other's axes";
      }
    }
  }
}

TEST(RandomProjection, NormsMatchGaussianRows) {
  // χ_d has mean √2 Γ((d + 1) / 2) / Γ(d / 2) and mean square d. Its kurtosis is at most 3.25 for d >= 2, so the
  // relative standard error of a variance is at most √(2.25 / n).
  for (const auto& [kind, name] :
       {std::pair{RandomProjectionKind::iid, "iid"}, {RandomProjectionKind::orthogonal, "orthogonal"}}) {
    for (std::int64_t d : {2, 8, 64}) {
      std::vector<double> norms;
      for (std::uint32_t step = 0; step < 40; ++step) {
        const std::int64_t m = 2 * d + d / 2;  // the last block is cut
        const std::vector<float> rows = draw_random_projection(kind, m, d, key_of(step));
        for (std::int64_t i = 0; i < m; ++i) norms.push_back(norm(rows, d, i));
      }
      const double n = static_cast<double>(norms.size()), half = static_cast<double>(d) / 2;
      const double mean = std::sqrt(2.0) * std::exp(std::lgamma(half + 0.5) - std::lgamma(half)),
                   variance = static_cast<double>(d) - mean * mean;
      const Moments found = moments(norms);
      // Rounding changes a norm by at most one unit, and on average by far less.
      EXPECT_NEAR(found.mean, mean, 4 * std::sqrt(variance / n) + 1e-3 * mean) << name << ", d = " << d;
      EXPECT_NEAR(found.variance, variance, 4 * variance * std::sqrt(2.25 / n) + 1e-3) << name << ", d = " << d;
    }
  }
}

TEST(RandomProjection, NormsWithinBlockAreIndependent) {
  // A common norm, or norms that vary together, would show as correlation of neighbors.
  const std::int64_t d = 4;
  double sum = 0, variance = 0, mean = 0;
  std::vector<double> first, second;
  for (std::uint32_t step = 0; step < 4000; ++step) {
    const std::vector<float> rows = draw_random_projection(RandomProjectionKind::orthogonal, d, d, key_of(step));
    first.push_back(norm(rows, d, 0));
    second.push_back(norm(rows, d, 1));
    mean += first.back() / 4000;
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    sum += (first[i] - mean) * (second[i] - mean) / 4000;
    variance += (first[i] - mean) * (first[i] - mean) / 4000;
  }
  EXPECT_LT(std::abs(sum / variance), 4 / std::sqrt(4000.0));
}

TEST(RandomProjection, AxesAndSignsAreEquallyLikely) {
  // A QR factorization without sign correction gives a Q whose diagonal has one sign. Haar's has mean 0 and mean square
  // 1 / d in every entry, so a mean square norm of d makes it 1. The quantiles of stratified norms exclude the tails.
  const std::int64_t d = 5, draws = 20000;
  double stratified = 0;
  for (int i = 1; i <= 5; ++i) stratified += std::pow(chi_quantile(i / 6.0, d), 2) / 25;
  for (const RandomProjectionKind kind : all_values<RandomProjectionKind>()) {
    const std::string name = name_of(kind);
    const double expected = kind == RandomProjectionKind::norm_stratified ? stratified : 1;
    std::vector<double> sum(25), square(25);
    for (std::uint32_t step = 0; step < draws; ++step) {
      const std::vector<float> rows = draw_random_projection(kind, d, d, key_of(step));
      for (std::size_t i = 0; i < 25; ++i) {
        sum[i] += static_cast<double>(rows[i]) / draws;
        square[i] += static_cast<double>(rows[i]) * static_cast<double>(rows[i]) / draws;
      }
    }
    for (std::size_t i = 0; i < 25; ++i) {
      // 4.5 standard errors, for fifty standard normal numbers.
      EXPECT_NEAR(sum[i], 0, 4.5 / std::sqrt(draws)) << name << ", entry " << i;
      EXPECT_NEAR(square[i], expected, 4.5 * std::sqrt(2.0 / draws)) << name << ", entry " << i;
    }
  }
}

TEST(RandomProjection, FixedAndStructuredNormsMatchDefinition) {
  for (RandomProjectionKind kind : {RandomProjectionKind::orthogonal_fixed_norm, RandomProjectionKind::structured}) {
    for (const auto& [m, d] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {11, 4}, {70, 64}}) {
      const std::vector<float> rows = draw_random_projection(kind, m, d, key_of(0));
      for (std::int64_t i = 0; i < m; ++i)
        EXPECT_NEAR(norm(rows, d, i), std::sqrt(static_cast<double>(d)),
                    bfloat16_unit * std::sqrt(static_cast<double>(d)))
            << m << " " << d;
    }
  }
  // If d is not a power of two, columns of rows of norm √p are cut, and the mean square norm is d.
  const std::int64_t d = 48, m = 64;
  double mean = 0;
  for (std::uint32_t step = 0; step < 50; ++step) {
    const std::vector<float> rows = draw_random_projection(RandomProjectionKind::structured, m, d, key_of(step));
    for (std::int64_t i = 0; i < m; ++i) mean += dot(rows, d, i, i) / (50 * m);
  }
  // Over all rows of a block, each of the d columns has exactly the square p.
  EXPECT_NEAR(mean, d, 2 * bfloat16_unit * d / std::sqrt(50.0));
}

TEST(RandomProjection, StratifiedNormsAreShuffledQuantiles) {
  const std::int64_t m = 21, d = 4;
  std::vector<double> first_norms;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    const std::vector<float> rows = draw_random_projection(RandomProjectionKind::norm_stratified, m, d, key_of(step));
    std::vector<double> norms;
    for (std::int64_t i = 0; i < m; ++i) norms.push_back(norm(rows, d, i));
    first_norms.push_back(norms.front());
    std::sort(norms.begin(), norms.end());
    for (std::int64_t i = 0; i < m; ++i) {
      const double quantile = chi_quantile(static_cast<double>(i + 1) / (m + 1), d);
      // Rounding may swap neighbors, which moves neither further than the rounding error.
      ASSERT_NEAR(norms[static_cast<std::size_t>(i)], quantile, bfloat16_unit * quantile)
          << "step " << step << ", i = " << i;
    }
  }
  // Every row gets every quantile equally often.
  double mean = 0, square = 0;
  for (std::int64_t i = 1; i <= m; ++i) {
    const double quantile = chi_quantile(static_cast<double>(i) / (m + 1), d);
    mean += quantile / m;
    square += quantile * quantile / m;
  }
  const Moments found = moments(first_norms);
  EXPECT_NEAR(found.mean, mean, 4 * std::sqrt((square - mean * mean) / 2000));
  EXPECT_NEAR(found.variance, square - mean * mean, 0.15 * (square - mean * mean));
}

TEST(RandomProjection, ChiQuantilesMatchDistribution) {
  for (double p : {1e-6, 0.01, 1.0 / 257, 0.3, 0.5, 0.9, 256.0 / 257, 0.9999}) {
    // d = 1 is |N(0, 1)|, d = 2 Rayleigh's; for even d the distribution is a finite sum.
    EXPECT_NEAR(std::erf(chi_quantile(p, 1) / std::sqrt(2.0)), p, 1e-14) << p;
    EXPECT_NEAR(chi_quantile(p, 2), std::sqrt(-2 * std::log1p(-p)), 1e-12 * chi_quantile(p, 2)) << p;
    for (std::int64_t d : {4, 64, 128}) {
      const double x = std::pow(chi_quantile(p, d), 2) / 2;
      double log_term = -x, above = std::exp(log_term);
      for (std::int64_t k = 1; k < d / 2; ++k) above += std::exp(log_term += std::log(x / static_cast<double>(k)));
      // dP/dx x is at least about (1 - P) here: an error of 1e-12 in the quantile would show.
      EXPECT_NEAR(above, 1 - p, 1e-12 * std::min(1.0, 1 - p) + 2e-14) << p << ", d = " << d;
    }
  }
  for (std::int64_t d : {1, 3, 65}) EXPECT_LT(chi_quantile(0.4999, d), chi_quantile(0.5, d));
}

/// Returns the estimate of exp(q · k) from one random projection: the mean over rows of
/// exp(ω·(q + k) - (|q|² + |k|²) / 2).
double kernel_estimate(const std::vector<float>& rows, const std::vector<double>& query,
                       const std::vector<double>& key) {
  const std::size_t d = query.size(), m = rows.size() / d;
  double squares = 0, sum = 0;
  for (std::size_t c = 0; c < d; ++c) squares += query[c] * query[c] + key[c] * key[c];
  for (std::size_t i = 0; i < m; ++i) {
    double product = 0;
    for (std::size_t c = 0; c < d; ++c) product += static_cast<double>(rows[i * d + c]) * (query[c] + key[c]);
    sum += std::exp(product - squares / 2);
  }
  return sum / static_cast<double>(m);
}

TEST(RandomProjection, SoftmaxEstimateIsUnbiasedAndOrthogonalRowsReduceVariance) {
  constexpr std::uint32_t draws = 20000;
  const std::int64_t d = 8;
  std::vector<double> query(8), key(8);
  for (std::size_t c = 0; c < 8; ++c) {
    query[c] = 0.35 * random_normal({1, 0, 0}, c);
    key[c] = 0.35 * random_normal({1, 0, 1}, c);
  }
  double product = 0;
  for (std::size_t c = 0; c < 8; ++c) product += query[c] * key[c];
  for (std::int64_t m : {8, 16, 11}) {
    double variance[2] = {}, fourth[2] = {};
    for (const auto& [kind, name] :
         {std::pair{RandomProjectionKind::iid, "iid"}, {RandomProjectionKind::orthogonal, "orthogonal"}}) {
      std::vector<double> estimates;
      for (std::uint32_t step = 0; step < draws; ++step)
        estimates.push_back(kernel_estimate(draw_random_projection(kind, m, d, key_of(step)), query, key));
      const Moments found = moments(estimates);
      EXPECT_NEAR(found.mean, std::exp(product), 4 * std::sqrt(found.variance / draws)) << name << ", m = " << m;
      const auto at = static_cast<std::size_t>(kind == RandomProjectionKind::orthogonal);
      variance[at] = found.variance;
      for (double value : estimates) fourth[at] += std::pow(value - found.mean, 4) / draws;
    }
    // The standard error of a sample variance is √((μ₄ - σ⁴) / n); the difference must be significant.
    const double error =
        std::sqrt((fourth[0] - variance[0] * variance[0] + fourth[1] - variance[1] * variance[1]) / draws);
    EXPECT_LT(variance[1], variance[0] - 4 * error) << "m = " << m;
  }
}

}  // namespace
}  // namespace furlong::layers
