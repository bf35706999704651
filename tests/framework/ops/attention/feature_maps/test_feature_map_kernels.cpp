// Bias and variance of the kernels that random features estimate, over many draws of the random projection.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "layers/attention/linear/random_projection.h"
#include "tests/framework/ops/attention/feature_maps/feature_map_testing.h"

namespace furlong {
namespace {

using layers::RandomProjectionKind;
using ops::FeatureMap;
using reference::FeatureMapCase;
using testing::MapTile;

constexpr std::int64_t d = 8, m = 20, draws = 4000;  // neither m nor m / 2 is a multiple of d
constexpr FeatureMap estimators[] = {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic, FeatureMap::favor_trig,
                                     FeatureMap::oprf};

/// Rows of queries and keys with |q'| = |k'| = 1/2, x' = x d^(-1/4): equal, opposite, or unrelated.
enum Pair { equal, opposite, unrelated };
constexpr Pair pairs[] = {equal, opposite, unrelated};

struct Rows {
  std::vector<double> query, key;
};
const Rows& rows() {
  static const Rows made = [] {
    const auto unit_row = [](const char* name) {
      std::vector<double> row = testing::normal_values(d, name);
      const double size =
          0.5 * std::pow(static_cast<double>(d), 0.25) / std::sqrt(reference::inner(row.data(), row.data(), d));
      for (double& value : row) value *= size;
      return row;
    };
    const std::vector<double> q = unit_row("kernel query"), other = unit_row("kernel key");
    Rows result;
    for (Pair pair : pairs) {
      for (std::size_t c = 0; c < q.size(); ++c) {
        result.query.push_back(q[c]);
        result.key.push_back(pair == equal ? q[c] : pair == opposite ? -q[c] : other[c]);
      }
    }
    return result;
  }();
  return made;
}
const double* query_of(Pair pair) { return rows().query.data() + pair * d; }
const double* key_of(Pair pair) { return rows().key.data() + pair * d; }

/// Returns |q' + k'|², or |q' - k'|² with sign -1.
double square_of_sum(Pair pair, double sign = 1) {
  double sum = 0;
  for (std::int64_t c = 0; c < d; ++c) sum += std::pow(query_of(pair)[c] + sign * key_of(pair)[c], 2);
  return sum / std::sqrt(static_cast<double>(d));
}

/// Returns the optimal A for the equal pair (Likhosherstov et al. 2022).
double best_a() {
  const double phi = square_of_sum(equal) / static_cast<double>(d);
  return (1 - 2 * phi - std::sqrt(std::pow(2 * phi + 1, 2) + 8 * phi)) / 16;
}

struct Estimate {
  double bias = 0, variance = 0, standard_error = 0;  // of estimate / kernel - 1
};
using Estimates = std::map<std::pair<FeatureMap, Pair>, Estimate>;

FeatureMapCase case_of(FeatureMap map, const std::vector<float>& omega) {
  const std::int64_t n = ops::projection_count(map, m);
  return {map, {}, d, n, {omega.begin(), omega.begin() + n * d}, map == FeatureMap::oprf ? best_a() : 0};
}

const Estimates& measured(RandomProjectionKind kind) {
  static std::map<RandomProjectionKind, Estimates> known;
  if (const auto found = known.find(kind); found != known.end()) return found->second;
  std::map<std::pair<FeatureMap, Pair>, std::pair<double, double>> sums;
  for (std::uint32_t draw = 0; draw < draws; ++draw) {
    const std::vector<float> omega = layers::draw_random_projection(kind, m, d, {9, draw, random_stream("kernels")});
    for (FeatureMap map : estimators) {
      const FeatureMapCase c = case_of(map, omega);
      MapTile<double> query(c, rows().query, 3), key(c, rows().key, 3);
      const std::vector<double> phi_q = query.features(false), phi_k = key.features(true), log_q = query.row_log(),
                                log_k = key.row_log();
      for (Pair pair : pairs) {
        const auto row = [&](const std::vector<double>& phi, const std::vector<double>& logs) {
          return reference::FeatureRow{{phi.begin() + pair * m, phi.begin() + (pair + 1) * m}, logs[pair]};
        };
        const double estimate = reference::kernel_of_rows(c, row(phi_q, log_q), row(phi_k, log_k));
        const double error = estimate / reference::closed_kernel(c, query_of(pair), key_of(pair)) - 1;
        auto& [sum, square] = sums[{map, pair}];
        sum += error;
        square += error * error;
      }
    }
  }
  Estimates& result = known[kind];
  for (const auto& [what, values] : sums) {
    const double mean = values.first / draws, variance = values.second / draws - mean * mean;
    result[what] = {mean, variance, std::sqrt(variance / draws)};
  }
  return result;
}

/// Returns E exp(ω·z) for ω of norm r in a uniform direction, as a function of t = r² |z|²: Σ_k (t/4)^k / (k! (d/2)_k).
/// A negative t gives E cos(ω·z).
double mean_over_sphere(double t) {
  double term = 1, sum = 1;
  for (int k = 1; k < 200; ++k) sum += term *= t / 4 / k / (static_cast<double>(d) / 2 + k - 1);
  return sum;
}

/// Returns the theoretical bias for uniform directions with squared norm `square`.
double bias_with_norm(FeatureMap map, Pair pair, double square) {
  if (map == FeatureMap::favor_trig)
    return mean_over_sphere(-square * square_of_sum(pair, -1)) * std::exp(square_of_sum(pair, -1) / 2) - 1;
  const double a = map == FeatureMap::oprf ? best_a() : 0, z = square_of_sum(pair);
  return std::exp(2 * a * square - z / 2 + static_cast<double>(d) / 2 * std::log(1 - 4 * a)) *
             mean_over_sphere((1 - 4 * a) * square * z) -
         1;
}

std::string label(FeatureMap map, Pair pair) {
  return fmt::format("{}{}", ops::feature_map_info(map).name,
                     pair == equal      ? "_equal"
                     : pair == opposite ? "_opposite"
                                        : "_unrelated");
}

void expect_biases(RandomProjectionKind kind, const std::function<double(FeatureMap, Pair)>& expected,
                   double rounding) {
  for (const auto& [what, estimate] : measured(kind)) {
    const auto& [map, pair] = what;
    EXPECT_NEAR(estimate.bias, expected(map, pair), 4 * estimate.standard_error + rounding) << label(map, pair);
    EXPECT_LT(estimate.standard_error, 0.01) << label(map, pair) << ": too few draws";
    ::testing::Test::RecordProperty(label(map, pair),
                                    fmt::format("bias {:.4f} expected {:.4f} +- {:.4f} variance {:.4f}", estimate.bias,
                                                expected(map, pair), estimate.standard_error, estimate.variance));
  }
}

// Rounding ω to bfloat16 changes its squared norm by at most about 2^-8 if errors cannot average out (structured: all
// entries are equal in size).

TEST(FeatureMapKernels, UnbiasedWithIidProjection) {
  expect_biases(
      RandomProjectionKind::iid, [](FeatureMap, Pair) { return 0.0; }, 1e-12);
}
TEST(FeatureMapKernels, UnbiasedWithOrthogonalProjection) {
  expect_biases(
      RandomProjectionKind::orthogonal, [](FeatureMap, Pair) { return 0.0; }, 1e-12);
}
TEST(FeatureMapKernels, BiasWithFixedNormsMatchesTheory) {
  expect_biases(
      RandomProjectionKind::orthogonal_fixed_norm,
      [](FeatureMap map, Pair pair) { return bias_with_norm(map, pair, d); }, 1e-4);
}
TEST(FeatureMapKernels, BiasWithStratifiedNormsMatchesTheory) {
  expect_biases(
      RandomProjectionKind::norm_stratified,
      [](FeatureMap map, Pair pair) {
        double sum = 0;
        for (std::int64_t i = 1; i <= m; ++i) {
          const double norm = layers::chi_quantile(static_cast<double>(i) / static_cast<double>(m + 1), d);
          sum += bias_with_norm(map, pair, norm * norm) / static_cast<double>(m);
        }
        return sum;
      },
      1e-4);
}
TEST(FeatureMapKernels, StructuredProjectionHasNearlyTheBiasOfFixedNorms) {
  // Three rounds are not exactly uniform in direction; the difference is largest at d = 8.
  expect_biases(
      RandomProjectionKind::structured, [](FeatureMap map, Pair pair) { return bias_with_norm(map, pair, d); }, 5e-3);
}
TEST(FeatureMapKernels, BiasesAreBounded) {
  // The bounds of docs/internals/numerics.md, at |q' ± k'| <= 1 and d = 8. oprf assumes the spread of |ω|², which these
  // kinds remove.
  for (RandomProjectionKind kind : {RandomProjectionKind::orthogonal_fixed_norm, RandomProjectionKind::norm_stratified,
                                    RandomProjectionKind::structured}) {
    for (const auto& [what, estimate] : measured(kind)) {
      const double bound = what.first == FeatureMap::oprf ? 0.08 : 0.03;
      EXPECT_LT(std::abs(estimate.bias), bound + 4 * estimate.standard_error) << label(what.first, what.second);
    }
  }
}

double variance(RandomProjectionKind kind, FeatureMap map, Pair pair) {
  return measured(kind).at({map, pair}).variance;
}

TEST(FeatureMapKernels, VarianceMatchesTheory) {
  // Independent directions: (exp(|q'+k'|²) - 1) / m for positive features (Choromanski et al. 2021, lemma 2); zero if
  // k = -q.
  const double z = square_of_sum(equal), expected = (std::exp(z) - 1) / static_cast<double>(m);
  // The fourth moment of a log-normal makes the standard error of this variance about 5%.
  EXPECT_NEAR(variance(RandomProjectionKind::iid, FeatureMap::favor_positive, equal), expected, 0.2 * expected);
  const double hyperbolic = (std::exp(z) + std::exp(-z) - 2) / static_cast<double>(m);
  EXPECT_NEAR(variance(RandomProjectionKind::iid, FeatureMap::favor_hyperbolic, equal), hyperbolic, 0.2 * hyperbolic);
  EXPECT_LT(variance(RandomProjectionKind::iid, FeatureMap::favor_positive, opposite), 1e-25);
  EXPECT_LT(variance(RandomProjectionKind::iid, FeatureMap::favor_trig, equal), 1e-25);
}
TEST(FeatureMapKernels, OrthogonalProjectionReducesVariance) {
  for (Pair pair : {equal, unrelated}) {
    for (FeatureMap map : {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic, FeatureMap::oprf})
      EXPECT_LT(variance(RandomProjectionKind::orthogonal, map, pair), variance(RandomProjectionKind::iid, map, pair))
          << label(map, pair);
  }
  for (Pair pair : {opposite, unrelated})
    EXPECT_LT(variance(RandomProjectionKind::orthogonal, FeatureMap::favor_trig, pair),
              variance(RandomProjectionKind::iid, FeatureMap::favor_trig, pair));
}
TEST(FeatureMapKernels, FixedAndStratifiedNormsReduceVariance) {
  for (FeatureMap map : {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic})
    EXPECT_LT(variance(RandomProjectionKind::orthogonal_fixed_norm, map, equal),
              0.75 * variance(RandomProjectionKind::orthogonal, map, equal));
  EXPECT_LT(variance(RandomProjectionKind::norm_stratified, FeatureMap::favor_trig, opposite),
            variance(RandomProjectionKind::orthogonal, FeatureMap::favor_trig, opposite));
}
TEST(FeatureMapKernels, MapsRankByVarianceAsInTheory) {
  for (RandomProjectionKind kind : {RandomProjectionKind::iid, RandomProjectionKind::orthogonal}) {
    // Small kernel values, for which trigonometric features are least accurate (Choromanski et al. 2021, figure 2).
    EXPECT_LT(variance(kind, FeatureMap::favor_positive, opposite),
              1e-3 * variance(kind, FeatureMap::favor_trig, opposite));
    for (Pair pair : {equal, unrelated})
      EXPECT_LE(variance(kind, FeatureMap::favor_hyperbolic, pair), variance(kind, FeatureMap::favor_positive, pair));
    EXPECT_LT(variance(kind, FeatureMap::oprf, equal), variance(kind, FeatureMap::favor_positive, equal));
  }
}

}  // namespace
}  // namespace furlong
