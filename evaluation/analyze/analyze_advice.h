#pragma once
// How many features a wanted error takes, and which attention reaches it at the least cost.
#include <optional>

#include "evaluation/analyze/analyze_attention.h"

namespace furlong {

struct AdviceOptions {
  double target_error = 0.1;
  std::int64_t most_features = 1024;  ///< M: no more random features are tried,
  bool bounds_polynomials = false;    ///< nor polynomials that have more, of the default candidates
  std::int64_t draws = 3;             ///< over which an error is the median
  std::uint64_t seed = 0;
  std::int64_t length = 0;                                           ///< n that costs are told for; 0: the data's
  layers::DirectionsKind kind = layers::DirectionsKind::orthogonal;  ///< of every candidate's directions
  std::vector<AttentionCandidate> candidates;                        ///< empty: default_advice_candidates()
};

/// The least m found at which the error was measured to be within the target.
struct RequiredFeatures {
  std::optional<std::int64_t> m;  ///< none: not up to M
  std::int64_t tried = 0;         ///< m, or M
  double error = 0;               ///< measured there
};
/// For data of one group and a candidate with random features. The error falls as m^(−1/2) where it is noise of m
/// independent features: that curve is laid through errors at three m, and the m that it promises is tried; where the
/// error is larger than promised, more are, up to M, and where it is smaller, fewer.
RequiredFeatures required_features(const AttentionData& data, const AttentionCandidate& candidate,
                                   const AdviceOptions& options);

/// Floating point operations a token and head of forward, as bench_attention.h counts them.
double linear_flops_per_token(const AttentionCandidate& candidate, std::int64_t m, std::int64_t d, std::int64_t n,
                              bool causal);
double softmax_flops_per_token(std::int64_t d, std::int64_t n, bool causal);

struct LinearChoice {
  AttentionCandidate candidate;
  std::int64_t m = 0;
  double error = 0;
  double flops_per_token = 0;
};

/// For one head.
struct Advice {
  std::optional<LinearChoice> linear;  ///< the cheapest that reaches the target; none: only softmax does
  LinearChoice nearest;                ///< the one with the least error of all that were tried
  double softmax_flops_per_token = 0;
  std::int64_t length = 0;  ///< n of the costs
  bool uniform_suffices =
      false;  ///< the mean of the visible values is within the target already: it says nothing of the map
  std::int64_t cheaper_from = 0;  ///< the least n at which `linear` costs less than softmax
  bool takes_softmax() const { return !linear || linear->flops_per_token >= softmax_flops_per_token; }
};
/// taylor:1 and 2, limit:2, favor_trig, favor_positive, favor_hyperbolic, oprf; and those of them with centring and
/// scaling.
const std::vector<AttentionCandidate>& default_advice_candidates();
/// One for each group of the data. Candidates with random features are tried with m from 32 to M in steps of about √2,
/// cheapest first, and given up where m^(−1/2) cannot bring them under the target by M.
std::vector<Advice> advise(const AttentionData& data, const AdviceOptions& options);

}  // namespace furlong
