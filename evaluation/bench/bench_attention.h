#pragma once
// furlong bench attention: what an attention costs in time, arithmetic and memory, and how that grows with length.
#include <optional>
#include <utility>
#include <vector>

#include "evaluation/attend/attend_operation.h"

namespace furlong {

struct BenchAttentionOptions {
  std::vector<std::int64_t> lengths;
  AttentionChoice choice;
  std::int64_t batch = 1, n_heads = 8, d = 64;
  std::int64_t features = 0;            ///< m; maps without directions have their own
  std::int64_t projected_length = 256;  ///< linformer: r, at most the length
  bool train = false;                   ///< backward too, down to query, key, value and weights
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

/// Floating point operations, a multiply-add counted as two, of one sequence of n tokens through all heads: products
/// alone, without exponentials and divisions. With p the pairs of tokens that see each other, D directions, chunks of
/// c, b = n(c+16)/2 the pairs of all causal chunks in blocks of 16 queries (c a multiple of 16; exact for others too),
/// and values as wide as keys:
///   softmax:   forward p·4d, backward p·10d, which has the scores again
///   linear:    what is computed, in backward too what memory linear in n makes it compute again:
///              forward 4nDd + 4nmd, backward 12nDd + 10nmd;
///              causal: forward 4nDd + 4nmd + 2b(m+d), backward 14nDd + 10nmd + 2b(3m+2d);
///              with a window, each product of the definition once: forward 4nDd + p·2(m+d), backward 8nDd + p·2(3m+2d)
///   linformer: forward 4nrd + nr·4d, backward 8nrd + nr·10d; mean pooling and convolution without the 4nrd and 8nrd
///   windowed:  softmax over the pairs inside the window, and linear without one
double attention_flops(const BenchAttentionOptions& options, std::int64_t n);

/// Of a sequence in segments of n tokens (parallel.sequence_processes), what comes to each in forward, and as much in
/// backward: the features of its keys once more (in backward of its queries), and their sum, which goes to the others.
/// Linear attention: 2nDd + 2nmd.
double segment_flops(const BenchAttentionOptions& options, std::int64_t n);

/// The slope of log y over log x by least squares; needs two different x.
double fitted_exponent(const std::vector<std::pair<double, double>>& points);

}  // namespace furlong
