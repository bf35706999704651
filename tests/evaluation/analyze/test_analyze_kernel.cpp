// The columns of furlong analyze attention about the weights of single pairs, against closed forms.
#include "evaluation/analyze/analyze_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/evaluation/analyze/analyze_testing.h"

namespace furlong {
namespace {

using testing::sample_of;

TEST(KernelStatistics, PositiveFeaturesHaveSmallerErrorForSmallKernelValues) {
  const auto variance = [](double sign, const char* name) {
    AttentionSample sample = sample_of(1, 1, 1, 1, 16, 0.8);
    std::vector<double> key = sample.query.to_vector<double>();
    for (double& entry : key) entry *= sign;
    sample.key = Tensor::from(key, {1, 1, 16});
    return *kernel_statistics(AttentionData({sample}, false), attention_candidate(name), 32, 200, 1).relative_variance;
  };
  // k = -q: ω·(q' + k') = 0, and the positive estimate is exact; k = q: ω·(q' - k') = 0, and the trigonometric one is.
  EXPECT_LT(variance(-1, "favor_positive"), 1e-20);
  EXPECT_GT(variance(-1, "favor_trig"), 1);
  EXPECT_LT(variance(1, "favor_trig"), 1e-20);
  EXPECT_GT(variance(1, "favor_positive"), 0.1);
}

// For independent directions Var / kernel² = (exp |q'+k'|² - 1) / m (Choromanski et al. 2021, lemma 2).
TEST(KernelStatistics, VarianceMatchesClosedForm) {
  const std::int64_t n = 4, d = 8, m = 16;
  const AttentionSample sample = sample_of(1, n, 1, 1, d, 0.5);
  const std::vector<double> q = sample.query.to_vector<double>(), k = sample.key.to_vector<double>();
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double square = 0;
      for (std::int64_t c = 0; c < d; ++c)
        square += std::pow(q[static_cast<std::size_t>(i * d + c)] + k[static_cast<std::size_t>(j * d + c)], 2) /
                  std::sqrt(8.0);
      expected += (std::exp(square) - 1) / static_cast<double>(m * n * n);
    }
  }
  AttentionCandidate candidate;
  candidate.kind = layers::RandomProjectionKind::iid;
  const KernelStatistics found = kernel_statistics(AttentionData({sample}, false), candidate, m, 20000, 1);
  EXPECT_NEAR(*found.relative_variance / expected, 1, 0.1) << "20,000 draws of a skewed estimate";
  EXPECT_NEAR(*found.relative_error / std::sqrt(expected), 1, 0.05) << "unbiased: all its error is variance";
  EXPECT_TRUE(found.is_resolved);
}

// At norms of 8 the closed form gives 10^6 and more, of which 16 draws find some 100.
TEST(KernelStatistics, TellsWhenDrawsMissTheMean) {
  AttentionCandidate candidate;
  for (const auto kind : {layers::RandomProjectionKind::iid, layers::RandomProjectionKind::orthogonal}) {
    candidate.kind = kind;
    const auto at_norm = [&](double deviation) {
      return kernel_statistics(gaussian_attention(1, 64, 64, deviation, false, 1), candidate, 256, 16, 1);
    };
    EXPECT_TRUE(at_norm(0.25).is_resolved);
    EXPECT_FALSE(at_norm(0.7).is_resolved);
    const KernelStatistics large = at_norm(1);
    EXPECT_FALSE(large.is_resolved);
    EXPECT_LT(*large.relative_variance, 1e5);
  }
  EXPECT_TRUE(kernel_statistics(gaussian_attention(1, 64, 64, 1, false, 1), attention_candidate("taylor:1"), 65, 2, 1)
                  .is_resolved)
      << "no draws";
  EXPECT_TRUE(kernel_statistics(gaussian_attention(1, 4, 16, 0.1, false, 1), {}, 64, 16, 1).is_resolved)
      << "few pairs are not rare ones";
}

TEST(KernelStatistics, ErrorOfDeterministicMap) {
  const AttentionSample sample = sample_of(1, 1, 1, 1, 4);
  const std::vector<double> q = sample.query.to_vector<double>(), k = sample.key.to_vector<double>();
  double score = 0;
  for (std::size_t c = 0; c < 4; ++c) score += q[c] * k[c] / 2;
  const AttentionData data({sample}, false);
  const KernelStatistics taylor = kernel_statistics(data, attention_candidate("taylor:2"), 15, 2, 1);
  EXPECT_EQ(*taylor.relative_variance, 0);
  EXPECT_NEAR(*taylor.relative_error, std::abs((1 + score + score * score / 2) / std::exp(score) - 1), 1e-12);
  EXPECT_FALSE(kernel_statistics(data, attention_candidate("elu1"), 4, 2, 1).relative_error) << "another kernel";
}

TEST(KernelStatistics, StayFiniteAtLargeNorms) {
  const AttentionData data = gaussian_attention(1, 48, 64, 6, true, 1);  // norms of 48
  for (const char* name : {"favor_positive", "favor_hyperbolic", "oprf", "exp", "taylor:2", "cosine"}) {
    const AttentionCandidate candidate = attention_candidate(name);
    const std::int64_t m = candidate.features(64, 64);
    const KernelStatistics found = kernel_statistics(data, candidate, m, 3, 1);
    if (found.relative_error && std::string(name) != "taylor:2") {  // whose ratio is no number of a double at exp(-100)
      EXPECT_TRUE(std::isfinite(*found.relative_error)) << name;
    }
    EXPECT_GE(found.effective_features, 1) << name;
    EXPECT_LE(found.effective_features, static_cast<double>(m)) << name;
  }
}

TEST(KernelStatistics, EqualWeightsUseAllFeatures) {
  AttentionSample sample = sample_of(1, 6, 1, 1, 8, 0);
  EXPECT_NEAR(kernel_statistics(AttentionData({sample}, false), {}, 40, 2, 1).effective_features, 40, 1e-9);
  EXPECT_NEAR(
      kernel_statistics(AttentionData({sample}, false), attention_candidate("taylor:1"), 9, 2, 1).effective_features, 1,
      1e-9)
      << "only the constant is not zero";
  const AttentionData large = gaussian_attention(1, 64, 8, 3, false, 1);
  EXPECT_LT(kernel_statistics(large, {}, 40, 8, 1).effective_features, 4) << "few carry what large norms leave";
}

// One dimension: q' = ±0.5 around 1, k' = ±2; features 1 and x; keys weigh exp(±2).
TEST(KernelStatistics, CenteringWeighsKeysOfDenominators) {
  AttentionSample sample = sample_of(1, 2, 1, 1, 1);
  sample.query = Tensor::from(std::vector<double>{1.5, 0.5}, {1, 2, 1});
  sample.key = Tensor::from(std::vector<double>{7, 3}, {1, 2, 1});
  const double w1 = std::cosh(2), w2 = 0.5 * 2 * std::sinh(2), expected = (w1 + w2) * (w1 + w2) / (w1 * w1 + w2 * w2);
  const AttentionCandidate candidate = attention_candidate("taylor:1+centering");
  EXPECT_NEAR(kernel_statistics(AttentionData({sample}, false), candidate, 2, 2, 1).effective_features, expected, 1e-9);
}

}  // namespace
}  // namespace furlong
