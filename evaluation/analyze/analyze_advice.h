#pragma once
// Finds the number of features that reaches a target error, and the cheapest attention that reaches it.
#include <optional>

#include "evaluation/analyze/analyze_attention.h"

namespace furlong {

/// Options of advise().
struct AdviceOptions {
  double target_error = 0.1;         ///< largest relative error of a head's output that is allowed
  std::int64_t max_features = 1024;  ///< M: largest number of random features to try
  bool limits_polynomials = false;   ///< whether M also bounds polynomials of the default candidates
  std::int64_t draws = 3;            ///< an error is the median over them
  std::uint64_t seed = 0;
  std::int64_t length = 0;  ///< n of the costs; 0: that of the data
  layers::RandomProjectionKind kind =
      layers::RandomProjectionKind::orthogonal;  ///< of every candidate's random projection
  std::vector<AttentionCandidate> candidates;    ///< empty: default_advice_candidates()
};

/// Smallest m found whose measured error is within the target.
struct RequiredFeatures {
  std::optional<std::int64_t> m;  ///< empty: the error of M features exceeds the target
  std::int64_t tried = 0;         ///< m, or M
  double error = 0;               ///< measured at `tried`
};
/// Finds the required m for data of one group and a candidate with random features. The noise of m independent features
/// decreases as m^(−1/2). This curve, fitted to errors at three m, predicts the required m. If the measured error is
/// larger than predicted, more features are tried, up to M; if it is smaller, fewer.
RequiredFeatures required_features(const AttentionData& data, const AttentionCandidate& candidate,
                                   const AdviceOptions& options);

/// Returns the floating point operations of forward per token and head, counted as in bench_attention.h. `window` is a
/// sliding window; 0: none.
double linear_flops_per_token(const AttentionCandidate& candidate, std::int64_t m, std::int64_t d, std::int64_t n,
                              bool causal, std::int64_t window = 0);
/// The same for exact softmax attention.
double softmax_flops_per_token(std::int64_t d, std::int64_t n, bool causal, std::int64_t window = 0);

/// A feature map with its number of features, and their measured error and cost.
struct LinearChoice {
  AttentionCandidate candidate;
  std::int64_t m = 0;
  double error = 0;
  double flops_per_token = 0;
};

/// Advice for one group of the data: a head, or all replicas.
struct Advice {
  std::optional<LinearChoice> linear;  ///< cheapest that reaches the target; empty: only softmax reaches it
  LinearChoice nearest;                ///< smallest error of all that were tried
  double softmax_flops_per_token = 0;
  std::int64_t length = 0;        ///< n of the costs
  bool uniform_suffices = false;  ///< uniform attention also reaches the target, which then does not test the map
  std::int64_t cheaper_from = 0;  ///< smallest n at which `linear` costs less than softmax; 0: none, due to a window
  /// Returns whether softmax is the better choice: no map reaches the target at a lower cost.
  bool takes_softmax() const { return !linear || linear->flops_per_token >= softmax_flops_per_token; }
};
/// Returns taylor:1 and 2, limit:2, favor_trig, favor_positive, favor_hyperbolic and oprf, and variants with centering
/// and scaling.
const std::vector<AttentionCandidate>& default_advice_candidates();
/// Returns advice for each group of the data. Tries candidates in order of cost, with m from 8 to M in steps of about
/// √2. Skips a candidate if, by m^(−1/2), M features cannot reach the target.
std::vector<Advice> advise(const AttentionData& data, const AdviceOptions& options);

}  // namespace furlong
