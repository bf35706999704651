#pragma once
// Error of the weights φ(q)·φ(k) as estimates of exp(q·k/√d), over pairs.
#include <optional>

#include "evaluation/analyze/analyze_attention.h"

namespace furlong {

/// How well a candidate's weights estimate softmax's.
struct KernelStatistics {
  /// Relative variance: mean over pairs of the variance of estimate / kernel over draws (0 without random features).
  /// Relative error: root mean square of estimate / kernel − 1 over pairs and draws, which includes the bias. Empty if
  /// the map does not estimate softmax's kernel. Infinite if the ratio is too large for a double.
  std::optional<double> relative_variance, relative_error;
  /// False if a single pair and draw has more than 2% of the sum of squared errors (and 20 times its share): then rare
  /// draws, which few draws miss, determine the means, and the values above are usually far too small.
  bool is_resolved = true;
  /// Kish's effective sample size (Survey Sampling, 1965) of a query's denominator Σ_f w_f, w_f = φ_f(q) Σ_j c_j
  /// φ_f(k_j) with the weights c that centering gives keys: (Σ|w_f|)² / Σ w_f², between 1 and m; the mean over queries
  /// and draws.
  double effective_features = 0;
};

/// Returns the median over up to 8 heads. Uses the visible pairs of up to 32 queries and 64 keys of the first sequence,
/// and `draws` random projections (at least 2). Heads, queries and keys are evenly spaced.
KernelStatistics kernel_statistics(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                   std::int64_t draws, std::uint64_t seed);

}  // namespace furlong
