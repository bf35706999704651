#pragma once
// How well single weights φ(q)·φ(k) estimate exp(q·k/√d), pair by pair.
#include <optional>

#include "evaluation/analyze/analyze_attention.h"

namespace furlong {

struct KernelStatistics {
  /// Mean over pairs of the variance over draws of estimate / kernel (0 without random features), and root mean square
  /// over pairs and draws of estimate / kernel − 1, which has the bias too. None where the map does not estimate
  /// softmax's kernel, and infinite where that ratio is too large for a double.
  std::optional<double> relative_variance, relative_error;
  /// Kish's effective sample size (Survey Sampling, 1965) of a query's denominator Σ_f w_f, w_f = φ_f(q) Σ_j φ_f(k_j):
  /// (Σ|w_f|)² / Σ w_f², between 1 and m; the mean over queries and draws.
  double effective_features = 0;
};

/// Over up to 32 queries and 64 keys, evenly spread over the first sequence, that see each other, and `draws` draws of
/// directions (at least 2); of up to 8 heads, evenly spread, the median.
KernelStatistics kernel_statistics(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                   std::int64_t draws, std::uint64_t seed);

}  // namespace furlong
