#pragma once
// furlong bench attention: what an attention costs in time, arithmetic and memory, and how that grows with length.
#include <optional>
#include <utility>
#include <vector>

#include "trainers/attend_operation.h"

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
  std::vector<double> seconds;  ///< of each repetition, in order
  double median_seconds = 0;
  double flops = 0;             ///< attention_flops() of one repetition
  std::int64_t peak_bytes = 0;  ///< the most beyond the inputs: output, gradients, and what the attention needs on the way
};

struct BenchAttentionResult {
  std::int64_t features = 0;  ///< m; 0 without features
  std::vector<BenchAttentionLength> lengths;
  std::optional<double> exponent;  ///< of time in n, with at least two lengths
};

/// Runs each length once to warm up and then `repeat` times, the lengths by turns, so that a machine whose speed drifts does so under all
/// of them. Throws UserError where length and options do not go together.
BenchAttentionResult bench_attention(const BenchAttentionOptions& options);

/// Floating point operations, a multiply-add counted as two, of one sequence of n tokens through all heads: products alone, without
/// exponentials and divisions, each pair of tokens that see each other once, and in backward also what memory linear in n makes it compute
/// again. With p the pairs, D directions, chunks of c, and values as wide as keys:
///   softmax:   forward p·4d, backward p·10d
///   linear:    forward 4nDd + 4nmd, causal n(c+1)(m+d) more; backward 8nDd + 8nmd, causal 2nmd + n(c+1)(3m+2d) more;
///              with a window: forward 4nDd + p·2(m+d), backward 8nDd + p·2(3m+2d)
///   linformer: forward 4nrd + nr·4d, backward 8nrd + nr·10d; mean pooling and convolution without the 4nrd and 8nrd
///   windowed:  softmax over the pairs inside the window, and linear without one
double attention_flops(const BenchAttentionOptions& options, std::int64_t n);

/// Floating point operations a second of a large square ops::gemm on all threads, the best of several: what the machine gives. In `dtype`;
/// for float64 in float32.
double measured_peak(DType dtype, const Device& device);

/// The slope of log y over log x by least squares; needs two different x.
double fitted_exponent(const std::vector<std::pair<double, double>>& points);

}  // namespace furlong
