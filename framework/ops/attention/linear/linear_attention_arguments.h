#pragma once
#include <algorithm>
#include <vector>

#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/primitives/gpu_kernel.h"
#include "framework/simd/bfloat16_products.h"

namespace furlong::ops {

/// Extents of the tiles of one thread, and the size of its scratch. Rows are row_stride() elements
/// apart.
struct LinearAttentionSizes {
  std::int64_t chunk = 0, d = 0, d_value = 0, m = 0;
  std::int64_t near = 0;  // maximum number of keys that a chunk of queries meets pair by pair: its chunk and a window's
  bool softmax_pairs = false;
  bool two_sweeps = false;   // softmax_pairs, not causal: keys on each side of a query are visited in a causal sweep
  bool compensated = false;  // sums over all n / chunk chunks use compensated summation (Kahan 1965)
  bool rotates = false;      // the numerator's features are rotated by position
  /// Backward: a key's gradients are not complete after one chunk, but sums over query heads or sweeps, or must be
  /// added to a tensor after d_query.
  bool sums_key_gradients = false;
  /// Not null: products of features, weights, values and gradients round their operands to bfloat16. Products with the
  /// state do so if splits_sums(), with the state in two parts.
  const simd::BFloat16Products* bfloat16 = nullptr;
  std::int64_t ld_d = 0, ld_v = 0, ld_m = 0, ld_n = 0;
  std::int64_t ld_rotations = 0;  // cosines, and sines, of one row's rotations

  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  /// Elements from one row of n to the next. float32 rows a multiple of eight cache lines apart would share an eighth
  /// of the first-level cache.
  static std::int64_t row_stride(std::int64_t n) { return padded(n) % 128 == 0 ? padded(n) + 32 : padded(n); }
  void finish() {
    ld_d = row_stride(d);
    ld_v = row_stride(d_value);
    ld_m = row_stride(m);
    ld_n = row_stride(near);
    ld_rotations = padded(m / 2);
  }
  /// Backward visits keys one chunk at a time, whatever the window.
  LinearAttentionSizes for_backward() const {
    LinearAttentionSizes sizes = *this;
    sizes.near = sizes.chunk;
    sizes.finish();
    return sizes;
  }
  /// Elements of a tile's scratch: O(m · d_value + (chunk + window) · (m + d)), independent of the sequence length.
  std::int64_t forward_tile_elements() const {
    const std::int64_t rows = chunk + near, widest = std::max(chunk, near);
    const std::int64_t pairs = padded(chunk) * ld_n;
    return m * ld_v + 2 * ld_m + rows * (ld_d + ld_v + 2 * ld_m) + chunk * ld_m + (softmax_pairs ? 3 : 2) * pairs +
           std::max(bfloat16 ? 0 : ld_m, softmax_pairs ? ld_d : 0) * ld_n + 8 * padded(widest) +
           widest * (ld_m + ld_d) + (rotates ? rows * (ld_m + 2 * ld_rotations) + pairs : 0) +
           (compensated ? 2 * sum_elements() + 2 * ld_m : 0) + (bfloat16 ? 2 * operand_pairs() : 0) +
           (splits_sums() ? 2 * sum_pairs() : 0);
  }
  bool splits_sums() const { return bfloat16 && bfloat16->splits_float32; }
  /// Pairs of the largest operand of a product in bfloat16.
  std::int64_t operand_pairs() const {
    const std::int64_t by_rows = padded(std::max(chunk, near)) * std::max({ld_d, ld_v, ld_m, ld_n}) / 2,
                       transposed = simd::pairs_of(std::max({m, d, d_value})) * ld_n;
    return std::max(by_rows, transposed);
  }
  /// Pairs of the state, in either layout.
  std::int64_t sum_pairs() const { return std::max(simd::pairs_of(m) * ld_v, simd::pairs_of(d_value) * ld_m); }
  /// forward_tile_elements(), plus what the first of two sweeps stores for each query.
  std::int64_t forward_elements(std::int64_t n_query) const {
    return forward_tile_elements() + (two_sweeps ? n_query * ld_v + 3 * padded(n_query) : 0);
  }
  /// Elements of the state, in either layout.
  std::int64_t sum_elements() const { return std::max(m * ld_v, d_value * ld_m); }
  std::int64_t backward_tile_elements() const {
    const std::int64_t pairs = padded(chunk) * ld_n;
    return forward_tile_elements() + ld_v * ld_m + chunk * (2 * ld_v + 3 * ld_d + 2 * ld_m) +
           (softmax_pairs ? 3 : 2) * pairs + (bfloat16 ? 0 : ld_v * ld_n) + 3 * padded(chunk) + (rotates ? pairs : 0);
  }
  /// backward_tile_elements(), plus the gradients of one key-value head that are sums: all their rows.
  std::int64_t backward_elements(std::int64_t n_query, std::int64_t n_key) const {
    return backward_tile_elements() + n_query * ld_d + (sums_key_gradients ? n_key * (ld_d + ld_v) : 0);
  }
};

/// Checked arguments of the CPU and CUDA kernels. The CUDA kernels allocate their own scratch and prepared constants.
struct LinearAttentionArguments {
  LinearAttentionOptions options;
  std::int64_t features = 0;  // m
  std::int64_t n_projections = 0;
  std::int64_t query_offset = 0;     // causal: query i is at the position of key query_offset + i
  std::int64_t first_position = 0;   // position of key 0, if features are rotated and the row is one document
  bool guarded = false;              // denominators can be rounding noise
  Tensor query, key, value, output;  // 4-D views [batch, n, heads, d]
  Tensor gate;                       // [n_heads], any floating dtype; undefined: zero
  LinearAttentionConstants constants;
  AttentionMask mask;
  /// [batch, n_heads, n], compute dtype: stabilizer and 1 / denominator of each query; undefined if not stored.
  Tensor top, inverse_denominator;
  /// [batch, n_heads, 2], compute dtype: guarded rows and least relative denominator; undefined if not requested.
  Tensor denominators;
  /// State at the start, read if defined. For segments with packed documents, as SegmentExchange describes.
  Tensor start_sum, start_normalizer, start_maximum, start_magnitude;
  LinearAttentionState* state = nullptr;  // written at the end
  /// Backward of segments: gathered sums over the queries of other segments.
  Tensor end_sum, end_normalizer, end_maximum, end_magnitude;
  /// CPU only: parts of each sequence that are computed in parallel, like sequences of their own, if (sequence, head)
  /// pairs are at most half as many as threads. More than 1: the sums above have [batch · segments] rows, and memory of
  /// `top` and `inverse_denominator` has the order [batch · segments, n_heads, n / segments].
  std::int64_t segments = 1;
  /// Segments with packed documents: position of key 0 of each row in its document.
  std::vector<std::int64_t> open_document_tokens{};
  /// If not null, forward only sums up keys and backward only sums up queries, as SegmentExchange needs them.
  LinearAttentionState* gathered = nullptr;
  LinearAttentionSizes sizes;
  // CPU only; the kernels write all of these.
  /// [1 or n_heads, d, row_stride(n_projections)], compute dtype; undefined without projections.
  Tensor directions_transposed;
  Tensor direction_norms;  // [1 or n_heads, n_projections], compute dtype
  // The same projections packed as right operands, if products round to bfloat16: [1 or n_heads, pairs_of(d),
  // row_stride(n_projections)] and [1 or n_heads, pairs_of(n_projections), ld_d] pairs of 32 bits.
  Tensor packed_directions_transposed, packed_directions;
  Tensor rotation;  // [1 + powers, 2, padded features / 2], float64; undefined without rotation
  Tensor scratch;   // [threads, elements], compute dtype

  /// Number of past keys that a state must store unchanged: those that a later query can still meet pair by pair.
  static std::int64_t recent_keys(const LinearAttentionOptions& options) {
    return std::max<std::int64_t>({options.window, options.softmax_window, 1}) - 1;
  }
};

/// Returns matrix `set` of packed_directions or packed_directions_transposed.
inline simd::BFloat16Pair* packed_matrix(const Tensor& packed, std::int64_t set) {
  return static_cast<simd::BFloat16Pair*>(packed.address()) + set * packed.extent(1) * packed.extent(2);
}

struct LinearAttentionGradients {
  Tensor d_output;                         // [batch, n, n_heads, d_value]
  GradientTarget d_query, d_key, d_value;  // 4-D views like their values; d_key and d_value start at key query_offset
  Tensor d_gate;                           // [batch, n_heads], compute dtype; undefined if not needed

  /// Whether d_query has columns in common with d_key or d_value, as views of one tensor may.
  bool share_columns() const {
    const auto shares = [&](const GradientTarget& other) {
      if (!d_query.wanted() || !other.wanted()) return false;
      const auto first = [](const Tensor& rows) { return static_cast<const char*>(rows.address()); };
      const auto end = [&](const Tensor& rows) {
        return first(rows) + rows.extent(2) * rows.extent(3) * size_of(rows.dtype());
      };
      return first(other.tensor) < end(d_query.tensor) && first(d_query.tensor) < end(other.tensor);
    };
    return shares(d_key) || shares(d_value);
  }
};

void linear_attention_forward_cpu(const LinearAttentionArguments& arguments);
void linear_attention_backward_cpu(const LinearAttentionArguments& arguments,
                                   const LinearAttentionGradients& gradients);
/// If (sequence, head) pairs are at most half as many as threads, chooses segments, and computes the sums that each
/// starts from. Call before forward, on the CPU, after `scratch` is allocated.
void start_segments_cpu(LinearAttentionArguments& arguments);
/// Likewise for backward with the segments and start sums of forward: computes the sums that each segment ends with.
void end_segments_cpu(LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients);
/// The kernels for all segments, as sequences of their own.
void linear_attention_forward_of_segments(const LinearAttentionArguments& arguments);
void linear_attention_backward_of_segments(const LinearAttentionArguments& arguments,
                                           const LinearAttentionGradients& gradients);
/// Allocates packed_directions and packed_directions_transposed, and packs ω and ωᵀ if all entries are bfloat16
/// numbers, as models draw them. Products with bfloat16 queries are then as exact as in float32. Otherwise leaves both
/// undefined.
void pack_projections_cpu(LinearAttentionArguments& arguments, std::int64_t sets);
/// Kernels for the two feature forms, in log_features_cpu.cpp and plain_features_cpu.cpp.
void log_features_forward_cpu(const LinearAttentionArguments& arguments);
void log_features_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients);
void plain_features_forward_cpu(const LinearAttentionArguments& arguments);
void plain_features_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients);

inline GpuKernel<const LinearAttentionArguments&> linear_attention_forward_gpu{"linear_attention"};
inline GpuKernel<const LinearAttentionArguments&, const LinearAttentionGradients&> linear_attention_backward_gpu{
    "linear_attention"};

}  // namespace furlong::ops
