#pragma once
// furlong analyze attention without a model: sweeps norms, head dimensions, lengths and features.
#include <filesystem>
#include <functional>
#include <optional>

#include "evaluation/analyze/analyze_advice.h"
#include "evaluation/analyze/analyze_kernel.h"

namespace furlong {

struct SweepOptions {
  std::filesystem::path input;  ///< HDF5 file, as for furlong attend; empty: Gaussian queries, keys and values
  std::vector<double> deviations{0.25, 0.5, 0.7, 1.0};  ///< Gaussian: standard deviations of the entries of q and k
  std::vector<std::int64_t> widths{64}, lengths{512};   ///< Gaussian: d, n
  std::vector<double> norm_scales{1.0};                 ///< factors that multiply q and k
  bool causal = false;
  std::vector<AttentionCandidate> candidates;  ///< `kinds` replaces their kinds of random projection
  std::vector<layers::RandomProjectionKind> kinds{layers::RandomProjectionKind::orthogonal};
  std::vector<std::int64_t> features{256};  ///< m, for maps with random features
  std::int64_t draws = 5;                   ///< of random projections and, if Gaussian, of q, k and v
  std::int64_t kernel_draws = 16;           ///< for the kernel's variance; 0: skip kernel statistics
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool find_features = false, advise = false;  ///< with advice.target_error
};

/// Result of one attention in one setting.
struct SweepResult {
  AttentionCandidate candidate;
  std::int64_t m = 0;
  double error = 0;                    ///< median over draws; for given data, mean over heads
  std::vector<double> error_of_heads;  ///< given data: per head
  std::optional<KernelStatistics> kernel;
  ops::DenominatorReport denominators;
  std::vector<RequiredFeatures> required;  ///< one per group; empty if not requested or if m is fixed
};

/// One setting of the sweep, with the results of all attentions.
struct SweepSetting {
  std::int64_t batch = 1, n_heads = 1, n = 0, d = 0;
  std::optional<double> deviation;
  double norm_scale = 1;
  double query_norm = 0, key_norm = 0;  ///< means over all rows
  double uniform_error = 0;
  std::vector<double> uniform_error_of_heads;
  std::vector<SweepResult> results;
  std::vector<Advice> advice;  ///< one per group
};

/// Computes all settings and calls `done` with each. Throws UserError before the first computation if a feature map
/// cannot have so many features.
void sweep_attention(const SweepOptions& options, const std::function<void(const SweepSetting&)>& done);

}  // namespace furlong
