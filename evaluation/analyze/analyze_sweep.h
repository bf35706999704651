#pragma once
// furlong analyze attention without a model: candidates over ranges of norms, widths, lengths and features.
#include <filesystem>
#include <functional>
#include <optional>

#include "evaluation/analyze/analyze_advice.h"
#include "evaluation/analyze/analyze_kernel.h"

namespace furlong {

struct SweepOptions {
  std::filesystem::path input;  ///< an HDF5 file as furlong attend reads it; empty: Gaussian queries, keys and values
  std::vector<double> deviations{0.25, 0.5, 0.7, 1.0};  ///< Gaussian: of the entries of q and k
  std::vector<std::int64_t> widths{64}, lengths{512};   ///< Gaussian: d, n
  std::vector<double> norm_scales{1.0};                 ///< q and k are multiplied by it
  bool causal = false;
  std::vector<AttentionCandidate> candidates;  ///< their direction kinds are replaced by `kinds`
  std::vector<layers::DirectionsKind> kinds{layers::DirectionsKind::orthogonal};
  std::vector<std::int64_t> features{256};  ///< m, for maps with random features
  std::int64_t draws = 5;                   ///< of directions and, Gaussian, of q, k and v
  std::int64_t kernel_draws = 16;           ///< for the kernel's variance; 0: leave kernels out
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool find_features = false, advise = false;  ///< under advice.target_error
};

/// One attention on one data.
struct SweepResult {
  AttentionCandidate candidate;
  std::int64_t m = 0;
  double error = 0;                    ///< median over draws; over given data's heads the mean
  std::vector<double> error_of_heads;  ///< given data: each head's
  std::optional<KernelStatistics> kernel;
  ops::DenominatorReport denominators;
  std::vector<RequiredFeatures> required;  ///< one for each group; empty where not asked or m is fixed
};

/// What does not depend on the attention.
struct SweepSetting {
  std::int64_t batch = 1, n_heads = 1, n = 0, d = 0;
  std::optional<double> deviation;
  double norm_scale = 1;
  double query_norm = 0, key_norm = 0;  ///< means over all rows
  double uniform_error = 0;
  std::vector<double> uniform_error_of_heads;
  std::vector<SweepResult> results;
  std::vector<Advice> advice;  ///< one for each group
};

/// Calls `done` with each setting as it is finished. Throws UserError where a map cannot have so many features, before
/// the first is computed.
void sweep_attention(const SweepOptions& options, const std::function<void(const SweepSetting&)>& done);

}  // namespace furlong
