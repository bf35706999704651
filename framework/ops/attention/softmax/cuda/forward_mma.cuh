#pragma once
// Forward of softmax attention in bfloat16 on tensor cores (Dao 2023, "FlashAttention-2"): each warp owns rows whose
// scores, weights and outputs stay in registers. Keys and values stream through shared memory, in two stages.
#include "framework/ops/attention/softmax/cuda/tensor_tiles.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Tile extents by head width: wide heads leave registers for fewer rows.
template <int width>
struct ForwardTiles {
  static constexpr int m_tiles = width <= 128 ? 2 : 1;
  static constexpr int queries = mma_warps * 16 * m_tiles;
  static constexpr int keys = width <= 64 ? 64 : width <= 128 ? 32 : 16;
  static constexpr int n_tiles = keys / 8;
  static constexpr std::size_t bytes = sizeof(Bf16) * (tile_elements<width>(queries) + 4 * tile_elements<width>(keys));
};

/// The running maximum of a row's scores (not yet scaled; equal in the four lanes that share the row), and this lane's
/// part of the sum of its weights under that maximum.
template <int m_tiles>
struct RowState {
  float maximum[m_tiles][2], sum[m_tiles][2];

  __device__ __forceinline__ void clear() {
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        maximum[m][half] = gpu_lowest<float>();
        sum[m][half] = 0.0f;
      }
    }
  }
};

/// Turns scores into weights under the rows' new maxima, and rescales outputs and sums so far. `scale` > 0 is that of
/// the exponents.
template <int m_tiles, int n_tiles, int output_tiles>
__device__ __forceinline__ void weigh_scores(float (&scores)[m_tiles][n_tiles][4], RowState<m_tiles>& state,
                                             float (&output)[m_tiles][output_tiles][4], float scale) {
  float shrink[m_tiles][2];
  bool changed = false;
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      float maximum = state.maximum[m][half];
      const float before = maximum;
      FURLONG_UNROLL
      for (int n = 0; n < n_tiles; ++n)
        maximum = gpu_max(maximum, gpu_max(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      maximum = gpu_max(maximum, __shfl_xor_sync(full_warp, maximum, 1));
      maximum = gpu_max(maximum, __shfl_xor_sync(full_warp, maximum, 2));
      state.maximum[m][half] = maximum;
      // A row without visible keys has weights 2^-infinity under any finite maximum.
      // With an unchanged maximum the factor must be 1, so both products are rounded.
      const float shift = maximum == gpu_lowest<float>() ? 0.0f : rounded_product(maximum, scale);
      shrink[m][half] = exp2_fast(rounded_product(before, scale) - shift);
      changed = changed || before != maximum;
      float sum = state.sum[m][half] * shrink[m][half];
      FURLONG_UNROLL
      for (int n = 0; n < n_tiles; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[m][n][2 * half + e];
          score = exp2_fast(gpu_fma(score, scale, -shift));
          sum += score;
        }
      }
      state.sum[m][half] = sum;
    }
  }
  if (!__any_sync(full_warp, changed)) return;  // all factors are 1
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int n = 0; n < output_tiles; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) output[m][n][e] *= shrink[m][e / 2];
    }
  }
}

/// A weight of 0 does not remove an infinity or NaN. So values that may be invisible to some query of the block are set
/// to zero: rows of masked keys, and every element that is not finite. mark_values and add_marked later add the latter
/// to the rows to which they are visible. Returns, after a barrier, whether there was one.
template <int width, int keys>
__device__ __forceinline__ bool silence_values(Bf16* values, const KeyTile<keys>& tile, int columns) {
  constexpr int ld = tile_stride<width>, vectors = width / 8;
  const int used = (columns + 15) & ~15;
  bool found = false;
  FURLONG_UNROLL_ONCE
  for (int i = static_cast<int>(threadIdx.x); i < keys * vectors; i += mma_threads) {
    const int row = i / vectors, column = i % vectors * 8;
    if (column >= used) continue;
    Bf16* address = values + row * ld + column;
    const bool kept = tile.keeps(row);
    Vector<std::uint32_t, 4> words = load_vector<4>(reinterpret_cast<const std::uint32_t*>(address));
    FURLONG_UNROLL
    for (int w = 0; w < 4; ++w) {
      const bool low = (words[w] & 0x7f80u) == 0x7f80u, high = (words[w] & 0x7f800000u) == 0x7f800000u;
      found = found || (kept && (low || high));
      words[w] = kept ? words[w] & (low ? 0xffff0000u : 0xffffffffu) & (high ? 0x0000ffffu : 0xffffffffu) : 0u;
    }
    store_vector(reinterpret_cast<std::uint32_t*>(address), words);
  }
  return __syncthreads_or(found);
}

// Encoding of a tile's values that are not finite. Sums of up to 64 marks, exact in float32, distinguish infinities of
// both signs; NaN is both at once.
inline constexpr float infinity_mark = 1.0f, minus_infinity_mark = 128.0f;

/// Writes the marks of the tile's values in global memory. Has a barrier before and after.
template <int width, int keys>
__device__ __forceinline__ void mark_values(Bf16* values, const SoftmaxProblem<Bf16>& p, const KeyTile<keys>& tile,
                                            const Bf16* head) {
  __syncthreads();
  FURLONG_UNROLL_ONCE
  for (int i = static_cast<int>(threadIdx.x); i < keys * width; i += mma_threads) {
    const int row = i / width, column = i % width;
    float mark = 0.0f;
    if (column < p.d_value_width && tile.keeps(row)) {
      const float value = to_compute(head[(tile.first + row) * p.value.row_stride + column]);
      if (!gpu_is_finite(value))
        mark = value > 0.0f ? infinity_mark : value < 0.0f ? minus_infinity_mark : infinity_mark + minus_infinity_mark;
    }
    values[row * tile_stride<width> + column] = from_compute<Bf16>(mark);
  }
  __syncthreads();
}

/// Makes the sums of rows to which a value that is not finite is visible infinite or NaN.
template <int width, int m_tiles, int keys>
__device__ __forceinline__ void add_marked(float (&output)[m_tiles][width / 8][4], const SoftmaxProblem<Bf16>& p,
                                           const KeyTile<keys>& tile, const Bf16* marks, int row_position, int lane) {
  constexpr int ld = tile_stride<width>;
  std::uint32_t rows[m_tiles][keys / 16][4];  // operand A: 1 in bfloat16 for visible pairs
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const VisibleRange visible = visible_keys(p, row_position + m * 16 + half * 8, tile.first, keys);
      FURLONG_UNROLL
      for (int n = 0; n < keys / 8; ++n) {
        const int j = n * 8 + lane % 4 * 2;
        const std::uint32_t kept = tile.kept[n / 4] >> (j & 31);
        rows[m][n / 2][n % 2 * 2 + half] = ((kept & 1) != 0 && visible.holds(j) ? 0x3f80u : 0u) |
                                           ((kept & 2) != 0 && visible.holds(j + 1) ? 0x3f800000u : 0u);
      }
    }
  }
  const Bf16* marks_lane = address_a<ld>(marks, lane);
  FURLONG_UNROLL
  for (int n = 0; n < width / 8; n += 2) {
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) {
      float sums[2][4];
      FURLONG_UNROLL
      for (int e = 0; e < 8; ++e) sums[e / 4][e % 4] = 0.0f;
      FURLONG_UNROLL
      for (int k = 0; k < keys / 16; ++k) {
        std::uint32_t columns[4];
        ldmatrix_x4_transposed(columns, marks_lane + k * 16 * ld + n * 8);
        const std::uint32_t low[2] = {columns[0], columns[1]}, high[2] = {columns[2], columns[3]};
        mma_m16n8k16(sums[0], rows[m][k], low);
        mma_m16n8k16(sums[1], rows[m][k], high);
      }
      FURLONG_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int sum = static_cast<int>(sums[e / 4][e % 4]);
        float& target = output[m][n + e / 4][e % 4];
        if (sum % 128 != 0) target += std::numeric_limits<float>::infinity();
        if (sum >= 128) target -= std::numeric_limits<float>::infinity();
      }
    }
  }
}

__device__ __forceinline__ void store_output(const HeadView<Bf16>& view, Bf16* target, float first, float second,
                                             bool has_second) {
  if (view.pairs) {
    store_vector(target, Vector<Bf16, 2>{{from_compute<Bf16>(first), from_compute<Bf16>(second)}});
  } else {
    target[0] = from_compute<Bf16>(first);
    if (has_second) target[1] = from_compute<Bf16>(second);
  }
}

/// Divides by the sums, and writes rows of output and their log-sum-exp.
template <int m_tiles, int output_tiles>
__device__ __forceinline__ void finish_rows(const float (&output)[m_tiles][output_tiles][4],
                                            const RowState<m_tiles>& state, const SoftmaxProblem<Bf16>& p,
                                            const BlockTask& task, int first, int end, int lane) {
  float inverse[m_tiles][2];
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(full_warp, sum, 1);
      sum += __shfl_xor_sync(full_warp, sum, 2);
      inverse[m][half] = sum == 0.0f ? 0.0f : gpu_divide_fast(1.0f, sum);
      const int row = first + m * 16 + half * 8 + lane / 4;
      const float maximum = state.maximum[m][half];
      if (p.log_sum_exp && row < end && lane % 4 == 0) {
        p.log_sum_exp[p.row(task.sequence, task.head, row)] =
            sum == 0.0f ? gpu_lowest<float>()
                        : gpu_fma(maximum * p.exponent_scale, static_cast<float>(ln_2), gpu_log(sum));
      }
    }
  }
  Bf16* const head = p.output.head(task.sequence, task.head);
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      Bf16* const target = head + row * p.output.row_stride;
      FURLONG_UNROLL
      for (int n = 0; n < output_tiles; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        // Adding zero makes a zero positive: its sign could come from a value that is not visible.
        const float low = output[m][n][2 * half] * inverse[m][half] + 0.0f,
                    high = output[m][n][2 * half + 1] * inverse[m][half] + 0.0f;
        if (row < end && column < p.d_value_width)
          store_output(p.output, target + column, low, high, column + 1 < p.d_value_width);
      }
    }
  }
}

template <int width>
__global__ void __launch_bounds__(mma_threads) softmax_forward_mma(const SoftmaxProblem<Bf16> p) {
  using Tiles = ForwardTiles<width>;
  constexpr int keys = Tiles::keys, m_tiles = Tiles::m_tiles, ld = tile_stride<width>,
                key_elements = tile_elements<width>(keys);
  FURLONG_DYNAMIC_SHARED(Bf16, query_tile);
  Bf16* const stages = query_tile + tile_elements<width>(Tiles::queries);  // two stages of keys and values
  const BlockTask task = block_task(p.batch, p.n_heads, true);
  const int lane = lane_index(), warp_row = warp_index() * 16 * m_tiles;
  const int kv_head = task.head / p.heads_per_kv();
  const Bf16 *const key_head = p.key.head(task.sequence, kv_head), *const value_head =
                                                                       p.value.head(task.sequence, kv_head);
  const std::int32_t* const kept = p.kept_keys(task.sequence);
  const auto load = [&](const KeyTile<keys>& tile, int stage) {
    Bf16* const target = stages + stage * 2 * key_elements;
    load_tile<width, keys>(target, p.key, key_head, tile.first, tile.count(), p.d_key_width);
    load_tile<width, keys>(target + key_elements, p.value, value_head, tile.first, tile.count(), p.d_value_width);
  };

  TokenBlocks<Tiles::queries> block(p.n_query, task.index);
  while (block.next(p, task.sequence, p.n_query, p.n_key)) {
    const int position = p.first_query_position + block.first;
    // The grid of tiles starts at the first visible key, which does not depend on later tokens.
    KeyTile<keys> tile;
    const int first_visible = greater(block.begin, position - p.behind),
              end_seen = lesser(block.end, position + block.count + p.ahead);
    tile.find(kept, first_visible, end_seen);
    float output[m_tiles][width / 8][4];
    RowState<m_tiles> state;
    set_zero(output);
    state.clear();
    if (tile.exists()) {
      load_tile<width, Tiles::queries>(query_tile, p.query, p.query.head(task.sequence, task.head), block.first,
                                       block.count, p.d_key_width);
      load(tile, 0);
      cp_async_commit();
    }
    bool non_finite = false;
    bool negate_queries = p.negative;  // negated once, so that scores grow with weights
    for (int stage = 0; tile.exists(); stage ^= 1) {
      KeyTile<keys> following;
      following.find(kept, tile.first + keys, tile.end);
      if (following.exists()) load(following, stage ^ 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      if (negate_queries) {
        FURLONG_UNROLL_ONCE
        for (int i = static_cast<int>(threadIdx.x); i < Tiles::queries * (width / 2); i += mma_threads) {
          auto* word = reinterpret_cast<std::uint32_t*>(query_tile + i / (width / 2) * ld) + i % (width / 2);
          *word ^= 0x80008000u;
        }
        negate_queries = false;
        __syncthreads();
      }
      Bf16* const key_tile = stages + stage * 2 * key_elements;
      Bf16* const value_tile = key_tile + key_elements;
      const int row_position = position + warp_row + lane / 4;
      const bool whole = is_whole(p, tile, position, block.count);

      float scores[m_tiles][keys / 8][4];
      set_zero(scores);
      add_row_products<width>(scores, query_tile + warp_row * ld, key_tile, p.d_key_width, lane);
      if (!whole) {
        hide_scores<keys>(scores, p, tile, row_position, lane, gpu_lowest<float>());
        if (silence_values<width>(value_tile, tile, p.d_value_width)) non_finite = true;
      }
      weigh_scores(scores, state, output, p.exponent_scale);
      std::uint32_t weights[m_tiles][keys / 16][4];
      pack_operand(weights, scores);
      add_weighted_rows<width>(output, weights, value_tile, p.d_value_width, lane);
      __syncthreads();  // the tile's memory is free for the tile after the next
      tile = following;
    }
    cp_async_wait<0>();
    if (non_finite) {
      for (tile.find(kept, first_visible, end_seen); tile.exists(); tile.find(kept, tile.first + keys, end_seen)) {
        if (is_whole(p, tile, position, block.count)) continue;
        mark_values<width>(stages, p, tile, value_head);
        add_marked<width>(output, p, tile, stages, position + warp_row + lane / 4, lane);
      }
      __syncthreads();
    }
    finish_rows(output, state, p, task, block.first + warp_row, block.first + block.count, lane);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
