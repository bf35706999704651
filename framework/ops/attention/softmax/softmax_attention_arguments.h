#pragma once
#include <algorithm>

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "framework/primitives/gpu_kernel.h"
#include "framework/simd/bfloat16_products.h"

namespace furlong::ops {

/// Extents of tiles and scratch. Results do not depend on the number of threads: it enters one size alone, the group of
/// a bfloat16 forward, which no sum crosses.
struct SoftmaxAttentionSizes {
  static constexpr std::int64_t query_block = 64;  // a row of a tile is four AVX-512 vectors of floats
  static constexpr std::int64_t key_block = 64;
  /// Minimum number of tasks. With fewer (sequence, key-value head) pairs, backward splits the queries of each
  /// key-value head into segments.
  static constexpr std::int64_t min_tasks = 8;

  /// Returns n rounded up to a multiple of 16: the row stride of tiles.
  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  /// Returns n rounded up to a multiple of 32: the width of packed heads.
  static std::int64_t padded_pairs(std::int64_t n) { return (n + 31) / 32 * 32; }
  /// Returns the number of blocks of queries in a sequence.
  static std::int64_t query_blocks(const AttentionShape& shape) {
    return (shape.n_query + query_block - 1) / query_block;
  }

  /// Return the elements of one thread's scratch in forward and in backward.
  static std::int64_t forward_elements(const AttentionShape& shape) {
    const std::int64_t widths = padded(shape.d_key) + padded(shape.d_value);
    return query_block * (2 * widths + key_block + 2) + key_block * widths;
  }
  static std::int64_t backward_elements(const AttentionShape& shape) {
    const std::int64_t widths = padded(shape.d_key) + padded(shape.d_value);
    return query_block * (3 * widths + padded(shape.d_key) + 2 * key_block + 2) + key_block * widths;
  }
  /// Likewise, where products round their operands to bfloat16, and groups of blocks of queries use a tile of keys one
  /// after another.
  static std::int64_t bfloat16_forward_elements(const AttentionShape& shape, std::int64_t group) {
    const std::int64_t k = padded_pairs(shape.d_key), v = padded_pairs(shape.d_value);
    return group * query_block * (k / 2 + v + 3) + key_block / 2 * (bfloat16_forward_tiles * (k + v) + v) +
           query_block * (key_block / 2 + std::max(padded(shape.d_key), padded(shape.d_value)));
  }
  static std::int64_t bfloat16_backward_elements(const AttentionShape& shape, std::int64_t group) {
    const std::int64_t k = padded_pairs(shape.d_key), v = padded_pairs(shape.d_value);
    const std::int64_t widths = padded(shape.d_key) + padded(shape.d_value);
    return group * query_block * (k / 2 + v / 2 + widths / 2 + k + 2 + key_block) + key_block / 2 * (2 * k + v) +
           query_block * (key_block + key_block / 4 + std::max(padded(shape.d_key), padded(shape.d_value)) +
                          padded(shape.d_value));
  }
  /// Tiles of keys that a block of queries uses one after another in forward.
  static constexpr std::int64_t bfloat16_forward_tiles = 4;
  /// Returns the blocks in a group in forward: enough groups for `threads`, which changes no result, and their data fit
  /// the L2 cache: 400 KB for heads up to 64 wide.
  static std::int64_t bfloat16_forward_group(const AttentionShape& shape, std::int64_t threads) {
    const std::int64_t most = 2048 / (padded_pairs(shape.d_key) + padded_pairs(shape.d_value));
    const std::int64_t blocks = shape.batch * shape.n_heads * query_blocks(shape);
    return std::clamp<std::int64_t>(std::min(most, blocks / (8 * threads)), 1, 16);
  }
  /// Likewise in backward: 600 KB. Sums for the keys of a tile are in the order of groups, so these depend only on the
  /// shape.
  static std::int64_t bfloat16_backward_group(const AttentionShape& shape) {
    return std::clamp<std::int64_t>(1024 / (padded_pairs(shape.d_key) + padded_pairs(shape.d_value)), 1, 8);
  }
  /// Returns the elements of the sums for the key and value gradients of one key-value head of a sequence.
  static std::int64_t sums_elements(const AttentionShape& shape) {
    return shape.n_key * (padded(shape.d_key) + padded(shape.d_value));
  }

  /// Returns the number of segments that a key-value head's queries are split into in backward. Usually 1: each
  /// (sequence, key-value head) is one task, which computes each tile's weights once for all three gradients.
  static std::int64_t segments(const AttentionShape& shape) {
    const std::int64_t tasks = std::max<std::int64_t>(1, shape.batch * shape.n_kv_heads);
    return std::clamp<std::int64_t>((min_tasks + tasks - 1) / tasks, 1, std::max<std::int64_t>(1, query_blocks(shape)));
  }
};

/// Checked arguments of the CPU and CUDA kernels.
struct SoftmaxAttentionArguments {
  static constexpr std::int64_t unbounded = std::int64_t{1} << 40;  // a distance greater than any sequence length

  AttentionShape shape;
  bool causal = true;
  std::int64_t first_query_position = 0;  ///< position of query 0 among the keys
  /// The query at position p attends to keys p - behind .. p + ahead.
  std::int64_t behind = unbounded, ahead = 0;
  double scale = 1;          ///< of the scores: weights are softmax(scale · q·k)
  Tensor query, key, value;  // inputs, shaped as in AttentionShape, rows contiguous
  Tensor output;             // [batch, n_query, n_heads, d_value]: overwritten by forward, read by backward
  // [batch, n_heads, n_query] in the compute dtype: log of the sum of each row's exponentials. Overwritten by forward,
  // read by backward. Undefined if not stored.
  Tensor log_sum_exp;
  AttentionMask mask;
  /// With a document mask, int32. CPU: [batch, query_blocks, 2], the start of the document of a block's first token,
  /// and the end of the document of its last token. GPU: [2, batch, n], the start and end of each token's document.
  Tensor boundaries;
  Tensor scratch;  // CPU only: [threads, forward_elements() or backward_elements()], compute dtype
  /// CPU only: kernels for products whose operands are rounded to bfloat16, if the inputs are bfloat16 and the CPU has
  /// them; otherwise null.
  const simd::BFloat16Products* bfloat16 = nullptr;
  std::int64_t group = 1;  // with these kernels: blocks of queries that use a tile of keys one after another

  /// Returns mask.keys of one sequence, [n_key]; null without a key mask.
  const std::int32_t* kept_keys(std::int64_t batch) const {
    return mask.keys.defined() ? mask.keys.data<std::int32_t>() + batch * shape.n_key : nullptr;
  }
};

/// Arguments of backward, besides those of forward.
struct SoftmaxAttentionGradients {
  Tensor d_output;                         // in output's shape
  GradientTarget d_query, d_key, d_value;  // in the inputs' shapes; each is overwritten or added to, as its mode says
  std::int64_t segments = 1;               ///< CPU only: SoftmaxAttentionSizes::segments()
  /// CPU only: [threads, sums_elements], or [tasks × segments, sums_elements] if segments > 1. Undefined if neither
  /// d_key nor d_value is wanted.
  Tensor sums;
  Tensor row_dots;  // GPU only: Σ_f d_output output, [batch, n_heads, n_query] in the compute dtype
};

/// The CUDA kernels support key and value heads up to this width.
inline constexpr std::int64_t max_gpu_head_width = 256;

/// Overwrites output and, if defined, log_sum_exp.
void softmax_attention_forward_cpu(const SoftmaxAttentionArguments& arguments);
/// Computes the gradients that are wanted.
void softmax_attention_backward_cpu(const SoftmaxAttentionArguments& arguments,
                                    const SoftmaxAttentionGradients& gradients);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const SoftmaxAttentionArguments&> softmax_attention_forward_gpu{"softmax_attention"};
inline GpuKernel<const SoftmaxAttentionArguments&, const SoftmaxAttentionGradients&> softmax_attention_backward_gpu{
    "softmax_attention"};

}  // namespace furlong::ops
