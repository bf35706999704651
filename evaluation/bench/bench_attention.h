#pragma once
// furlong bench attention: measures time, arithmetic and memory of attention over sequence lengths.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/attend/attend_operation.h"

namespace furlong {

/// Options of bench_attention().
struct BenchAttentionOptions {
  BenchAttentionOptions() {
    config.causal = false;
    config.n_heads = 8;
    config.d_head = 64;
    config.projected_length = 256;
  }
  std::vector<std::int64_t> lengths;
  /// n_features applies to maps with random features. projected_length is limited to the sequence length.
  layers::AttentionConfig config;
  std::int64_t batch = 1;
  bool train = false;  ///< forward and backward, with gradients of query, key, value and weights
  std::int64_t repeat = 5;
  DType dtype = DType::float32;
  Device device;
};

/// Measurements at one sequence length.
struct BenchAttentionLength {
  std::int64_t n = 0;
  std::int64_t projected_length = 0;  ///< linformer: rows that n tokens become, at most r
  std::vector<double> seconds;        ///< of each repetition, in order
  double median_seconds = 0;
  double flops = 0;             ///< attention_flops() of one repetition
  std::int64_t peak_bytes = 0;  ///< peak memory in addition to the inputs: output, gradients, scratch
};

/// The result of bench_attention().
struct BenchAttentionResult {
  std::int64_t features = 0;  ///< m; 0 if the mechanism has no features
  std::vector<BenchAttentionLength> lengths;
  std::optional<double> exponent;  ///< of time in n; requires two lengths
};

/// Peak rate of the machine: ops::gemm of square matrices on all threads, the best of all measurements so far. On the
/// CPU of several sizes, because other programs interrupt a long product more often than a short one. For float32 and
/// bfloat16 only: float64 products are optimized for accuracy, not for speed.
class PeakRate {
 public:
  /// Allocates the matrices. `rows`: of the first factor and the product; 0: square ones. `products`: how float32 is
  /// multiplied.
  PeakRate(DType dtype, const Device& device, std::int64_t rows = 0, ProductPrecision products = {});
  /// Measures at least two products of each size.
  void measure();
  /// Returns the best rate so far; 0 before measure().
  double flops_per_second() const { return best_; }

 private:
  Stream stream_;
  std::vector<std::int64_t> sizes_;  // the largest last
  std::int64_t rows_;                // 0: as the size
  Tensor a_, b_, c_;                 // flat
  double best_ = 0;
};

/// Rates of the machine on all threads that bound the speed of an op, each the best of several measurements.
struct Roofline {
  double float32_flops = 0, bfloat16_flops = 0;  ///< per second, as PeakRate; bfloat16 with weights as they are stored
  std::optional<double> bfloat16_packed_flops;   ///< of products that pack their weights; nullopt if none does
  double memory_bytes = 0;                       ///< per second, read and written: one large tensor added to another
  bool tf32 = false;                             ///< float32_flops is of TF32 products

  /// Returns the best rate of products of this dtype.
  double flops(DType dtype) const;
  /// Replaces each rate by that of `other` if it is better.
  void improve(const Roofline& other);
  /// Returns the line that furlong bench prints: "roofline: float32 150.1 GFLOP/s; ...".
  std::string text() const;
  nlohmann::ordered_json to_json() const;
};
/// Takes about a second. Allocates at most a 16th of `usable_memory` bytes for each of the two large tensors.
Roofline measure_roofline(const Device& device, std::uint64_t usable_memory, ProductPrecision products = {});

/// Runs each length once to warm up and then `repeat` times, alternating between lengths: drifts of the machine's speed
/// affect all lengths equally. Measures `peak`, if given, before each round and after the last. Throws UserError if
/// lengths and options are incompatible.
BenchAttentionResult bench_attention(const BenchAttentionOptions& options, PeakRate* peak = nullptr);

/// Returns the operations (layers::AttentionCost) of one sequence of n tokens, with backward if options.train.
double attention_flops(const BenchAttentionOptions& options, std::int64_t n);

/// Fits y = c x^p by least squares of logarithms and returns p. Requires two different x.
double fitted_exponent(const std::vector<std::pair<double, double>>& points);

}  // namespace furlong
