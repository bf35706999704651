#pragma once
// furlong bench attention: what an attention costs in time, arithmetic and memory, and how that grows with length.
#include <optional>
#include <utility>
#include <vector>

#include "evaluation/attend/attend_operation.h"

namespace furlong {

struct BenchAttentionOptions {
  BenchAttentionOptions() {
    config.causal = false;
    config.n_heads = 8;
    config.d_head = 64;
    config.projected_length = 256;
  }
  std::vector<std::int64_t> lengths;
  /// n_features is of maps with random features; projected_length is cut to the length.
  layers::AttentionConfig config;
  std::int64_t batch = 1;
  bool train = false;  ///< backward too, down to query, key, value and weights
  std::int64_t repeat = 5;
  DType dtype = DType::float32;
  Device device;
};

struct BenchAttentionLength {
  std::int64_t n = 0;
  std::int64_t projected_length = 0;  ///< linformer: r at this length
  std::vector<double> seconds;        ///< of each repetition, in order
  double median_seconds = 0;
  double flops = 0;  ///< attention_flops() of one repetition
  std::int64_t peak_bytes =
      0;  ///< the most beyond the inputs: output, gradients, and what the attention needs on the way
};

struct BenchAttentionResult {
  std::int64_t features = 0;  ///< m; 0 without features
  std::vector<BenchAttentionLength> lengths;
  std::optional<double> exponent;  ///< of time in n, with at least two lengths
};

/// What the machine gives: the rate of a large square ops::gemm on all threads, the best of all measurements so far. Of
/// float32 or bfloat16: products of float64 are for tests, and written for exactness, so that no rate of theirs is a
/// peak.
class PeakRate {
 public:
  PeakRate(DType dtype, const Device& device);
  /// Two products or more, for a tenth of a second.
  void measure();
  double flops_per_second() const { return best_; }

 private:
  Stream stream_;
  std::int64_t size_;
  Tensor a_, b_, c_;
  double best_ = 0;
};

/// Runs each length once to warm up and then `repeat` times, the lengths by turns, so that a machine whose speed drifts
/// does so under all of them; for the same reason `peak`, where given, is measured before each turn and after the last.
/// Throws UserError where length and options do not go together.
BenchAttentionResult bench_attention(const BenchAttentionOptions& options, PeakRate* peak = nullptr);

/// layers::AttentionCost of one sequence of n tokens: forward, or with options.train backward too.
double attention_flops(const BenchAttentionOptions& options, std::int64_t n);

/// The slope of log y over log x by least squares; needs two different x.
double fitted_exponent(const std::vector<std::pair<double, double>>& points);

}  // namespace furlong
