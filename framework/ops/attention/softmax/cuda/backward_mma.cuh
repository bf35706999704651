#pragma once
// Backward of softmax attention in bfloat16 on tensor cores. Weights are recomputed from the scores and the rows'
// log-sum-exp:
//   P = 2^(scale log2(e) Q Kᵀ - log2(e) lse),  dS = P ∘ (dO Vᵀ - row_dots),
//   dV = Pᵀ dO,  dK = scale dSᵀ Q,  dQ = scale dS K.
// No two blocks add to the same element: one kernel has blocks of queries and computes dQ, the other has blocks of keys
// and computes dK and dV from transposed tiles. Both compute the scores, seven products instead of the five of a kernel
// with atomic sums; in return every run gives the same bits.
#include "framework/ops/attention/softmax/cuda/tensor_tiles.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <int width>
struct QueryGradientTiles {
  static constexpr int m_tiles = width <= 64 ? 2 : 1;
  static constexpr int queries = mma_warps * 16 * m_tiles;
  static constexpr int keys = width <= 128 ? 32 : 16;
  static constexpr std::size_t bytes =
      sizeof(Bf16) * (2 * tile_elements<width>(queries) + 4 * tile_elements<width>(keys));
};

template <int width>
__global__ void __launch_bounds__(mma_threads) softmax_query_gradient_mma(const SoftmaxProblem<Bf16> p) {
  using Tiles = QueryGradientTiles<width>;
  constexpr int keys = Tiles::keys, m_tiles = Tiles::m_tiles, ld = tile_stride<width>,
                key_elements = tile_elements<width>(keys);
  FURLONG_DYNAMIC_SHARED(Bf16, query_tile);
  Bf16* const d_output_tile = query_tile + tile_elements<width>(Tiles::queries);
  Bf16* const stages = d_output_tile + tile_elements<width>(Tiles::queries);  // two stages of keys and values
  const BlockTask task = block_task(p.batch, p.n_heads, true);
  const int lane = lane_index(), warp_row = warp_index() * 16 * m_tiles;
  const int kv_head = task.head / p.heads_per_kv();
  const Bf16 *const key_head = p.key.head(task.sequence, kv_head), *const value_head =
                                                                       p.value.head(task.sequence, kv_head);
  const std::int32_t* const kept = p.kept_keys(task.sequence);
  const float exponent_scale = p.negative ? -p.exponent_scale : p.exponent_scale;
  const auto load = [&](const KeyTile<keys>& tile, int stage) {
    Bf16* const target = stages + stage * 2 * key_elements;
    load_tile<width, keys>(target, p.key, key_head, tile.first, tile.count(), p.d_key_width);
    load_tile<width, keys>(target + key_elements, p.value, value_head, tile.first, tile.count(), p.d_value_width);
  };

  TokenBlocks<Tiles::queries> block(p.n_query, task.index);
  while (block.next(p, task.sequence, p.n_query, p.n_key)) {
    const int position = p.first_query_position + block.first;
    KeyTile<keys> tile;
    tile.find(kept, greater(block.begin, position - p.behind), lesser(block.end, position + block.count + p.ahead));
    float d_query[m_tiles][width / 8][4], log_sum_exp[m_tiles][2], row_dots[m_tiles][2];
    set_zero(d_query);
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = warp_row + m * 16 + half * 8 + lane / 4;
        const std::int64_t row = p.row(task.sequence, task.head, block.first + i);
        log_sum_exp[m][half] = i < block.count ? p.log_sum_exp[row] * static_cast<float>(log2_e) : 0.0f;
        row_dots[m][half] = i < block.count ? p.row_dots[row] : 0.0f;
      }
    }
    if (tile.exists()) {
      load_tile<width, Tiles::queries>(query_tile, p.query, p.query.head(task.sequence, task.head), block.first,
                                       block.count, p.d_key_width);
      load_tile<width, Tiles::queries>(d_output_tile, p.d_output, p.d_output.head(task.sequence, task.head),
                                       block.first, block.count, p.d_value_width);
      load(tile, 0);
      cp_async_commit();
    }
    for (int stage = 0; tile.exists(); stage ^= 1) {
      KeyTile<keys> following;
      following.find(kept, tile.first + keys, tile.end);
      if (following.exists()) load(following, stage ^ 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      Bf16* const key_tile = stages + stage * 2 * key_elements;
      Bf16* const value_tile = key_tile + key_elements;
      const int row_position = position + warp_row + lane / 4;
      const bool whole = is_whole(p, tile, position, block.count);

      float scores[m_tiles][keys / 8][4], d_scores[m_tiles][keys / 8][4];
      set_zero(scores);
      set_zero(d_scores);
      add_row_products<width>(scores, query_tile + warp_row * ld, key_tile, p.d_key_width, lane);
      add_row_products<width>(d_scores, d_output_tile + warp_row * ld, value_tile, p.d_value_width, lane);
      FURLONG_UNROLL
      for (int m = 0; m < m_tiles; ++m) {
        FURLONG_UNROLL
        for (int n = 0; n < keys / 8; ++n) {
          FURLONG_UNROLL
          for (int e = 0; e < 4; ++e) {
            float& d_score = d_scores[m][n][e];
            const float weight = exp2_fast(gpu_fma(scores[m][n][e], exponent_scale, -log_sum_exp[m][e / 2]));
            d_score = weight * (d_score - row_dots[m][e / 2]);
          }
        }
      }
      if (!whole) hide_scores<keys>(d_scores, p, tile, row_position, lane, 0.0f);
      if (kept && !tile.is_full()) {  // values of masked keys could turn a gradient of 0 into NaN
        __syncthreads();              // other warps still read the tile
        FURLONG_UNROLL_ONCE
        for (int i = static_cast<int>(threadIdx.x); i < keys * (width / 2); i += mma_threads) {
          const int row = i / (width / 2);
          if (!tile.keeps(row)) reinterpret_cast<std::uint32_t*>(key_tile + row * ld)[i % (width / 2)] = 0u;
        }
        __syncthreads();
      }
      std::uint32_t d_score_rows[m_tiles][keys / 16][4];
      pack_operand(d_score_rows, d_scores);
      add_weighted_rows<width>(d_query, d_score_rows, key_tile, p.d_key_width, lane);
      __syncthreads();
      tile = following;
    }
    cp_async_wait<0>();
    store_gradient_rows(p.d_query, p.d_query.head(task.sequence, task.head), block.first + warp_row,
                        block.first + block.count, p.d_key_width, d_query, p.scale, lane);
  }
}

/// Registers hold both sums for heads up to 128 wide; wider heads use a separate launch for each.
template <int width>
struct KeyGradientTiles {
  static constexpr int m_tiles = width <= 64 ? 2 : 1;
  static constexpr int keys = mma_warps * 16 * m_tiles;
  static constexpr int queries = width <= 64 ? 64 : width <= 128 ? 32 : 16;
  static constexpr int stages = width <= 128 ? 2 : 1;
  // In registers. The compiler's code for sm_80 would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool holds_keys = false;
#else
  static constexpr bool holds_keys = width <= 64;
#endif
  static constexpr std::size_t bytes =
      sizeof(Bf16) * (2 * tile_elements<width>(keys) + 2 * stages * tile_elements<width>(queries)) +
      sizeof(float) * 2 * stages * queries;
};

/// Turns transposed scores into weights, and gradients of weights into gradients of scores, with the log-sum-exp and
/// row_dots of each column's query.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void weigh_columns(float (&weights)[m_tiles][n_tiles][4],
                                              float (&d_scores)[m_tiles][n_tiles][4], const float* log_sum_exp,
                                              const float* row_dots, float scale, int lane) {
  FURLONG_UNROLL
  for (int n = 0; n < n_tiles; ++n) {
    FURLONG_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int i = n * 8 + lane % 4 * 2 + e;
      const float shift = log_sum_exp[i] * static_cast<float>(log2_e), row_dot = row_dots[i];
      FURLONG_UNROLL
      for (int r = 0; r < 2 * m_tiles; ++r) {
        float& weight = weights[r / 2][n][r % 2 * 2 + e];
        float& d_score = d_scores[r / 2][n][r % 2 * 2 + e];
        weight = exp2_fast(gpu_fma(weight, scale, -shift));
        d_score = weight * (d_score - row_dot);
      }
    }
  }
}

/// A lane's part of its warp's rows in a block of keys.
struct KeyRows {
  const Bf16 *keys, *values;  // the warp's rows of the tiles
  int first;                  // key of the lane's first row; the next rows are 8 apart
  std::uint32_t kept = 0;     // bit r: key of the lane's row r is not masked

  template <int rows>
  __device__ void find_kept(const std::int32_t* mask, int end) {
    FURLONG_UNROLL
    for (int r = 0; r < rows; ++r) {
      if (first + r * 8 < end && (!mask || mask[first + r * 8] != 0)) kept |= 1u << r;
    }
  }
};

/// Part of a tile of queries, in shared memory.
struct QueryPart {
  const Bf16 *queries, *d_outputs;
  const float *log_sum_exp, *row_dots;
  int position, count;  // position of the first query, and number of queries from it on
};

/// Starts to copy a tile's queries, their d_output, log_sum_exp and row_dots.
template <int width, int queries>
__device__ __forceinline__ void load_queries(const SoftmaxProblem<Bf16>& p, int sequence, const QueryTiles& tile,
                                             Bf16* target, float* numbers) {
  const int count = tile.count(), i = static_cast<int>(threadIdx.x);
  load_tile<width, queries>(target, p.query, p.query.head(sequence, tile.head), tile.first, count, p.d_key_width);
  load_tile<width, queries>(target + tile_elements<width>(queries), p.d_output, p.d_output.head(sequence, tile.head),
                            tile.first, count, p.d_value_width);
  if (i >= queries) return;
  const std::int64_t row = i < count ? p.row(sequence, tile.head, tile.first + i) : 0;
  cp_async<4>(numbers + i, p.log_sum_exp + row, i < count ? 4 : 0);
  cp_async<4>(numbers + queries + i, p.row_dots + row, i < count ? 4 : 0);
}

/// Adds the contributions of 16 queries to the gradients of the warp's keys and values. Rows are keys, columns are
/// queries. `keys`: the warp's rows of keys, in shared memory or registers. `whole`: all of the block's keys are
/// visible to all of these queries.
template <int width, bool with_key, bool with_value, int m_tiles, class Keys, class KeySums, class ValueSums>
__device__ __forceinline__ void add_queries(KeySums& d_key, ValueSums& d_value, const SoftmaxProblem<Bf16>& p,
                                            const Keys& keys, const KeyRows& rows, const QueryPart& part, bool whole,
                                            int lane) {
  constexpr int columns = 16;
  float weights[m_tiles][columns / 8][4], d_scores[m_tiles][columns / 8][4];
  set_zero(weights);
  set_zero(d_scores);
  add_row_products<width>(weights, keys, part.queries, p.d_key_width, lane);
  if constexpr (with_key) add_row_products<width>(d_scores, rows.values, part.d_outputs, p.d_value_width, lane);
  weigh_columns(weights, d_scores, part.log_sum_exp, part.row_dots, p.negative ? -p.exponent_scale : p.exponent_scale,
                lane);
  if (!whole) {
    FURLONG_UNROLL
    for (int r = 0; r < 2 * m_tiles; ++r) {
      const VisibleRange visible =
          queries_of_key(p, rows.first + r * 8, part.position, (rows.kept >> r) & 1 ? part.count : 0);
      FURLONG_UNROLL
      for (int n = 0; n < columns / 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          if (visible.holds(n * 8 + lane % 4 * 2 + e)) continue;
          weights[r / 2][n][r % 2 * 2 + e] = 0.0f;
          d_scores[r / 2][n][r % 2 * 2 + e] = 0.0f;
        }
      }
    }
  }
  std::uint32_t operand[m_tiles][columns / 16][4];
  if constexpr (with_value) {
    pack_operand(operand, weights);
    add_weighted_rows<width>(d_value, operand, part.d_outputs, p.d_value_width, lane);
  }
  if constexpr (with_key) {
    pack_operand(operand, d_scores);
    add_weighted_rows<width>(d_key, operand, part.queries, p.d_key_width, lane);
  }
}

template <int width, bool with_key, bool with_value>
__global__ void __launch_bounds__(mma_threads) softmax_key_gradient_mma(const SoftmaxProblem<Bf16> p) {
  using Tiles = KeyGradientTiles<width>;
  constexpr int queries = Tiles::queries, m_tiles = Tiles::m_tiles, ld = tile_stride<width>,
                key_elements = tile_elements<width>(Tiles::keys);
  constexpr int stage_elements = 2 * tile_elements<width>(queries);
  FURLONG_DYNAMIC_SHARED(Bf16, key_tile);
  Bf16 *const value_tile = key_tile + key_elements, *const stages =
                                                        value_tile + key_elements;  // stages of queries and d_output
  float* const row_numbers =
      reinterpret_cast<float*>(stages + Tiles::stages * stage_elements);  // stages of log_sum_exp and row_dots
  const BlockTask task = block_task(p.batch, p.n_kv_heads, false);
  const int lane = lane_index(), warp_row = warp_index() * 16 * m_tiles;
  const std::int32_t* const kept = p.kept_keys(task.sequence);
  const auto load = [&](const QueryTiles& tile, int stage) {
    load_queries<width, queries>(p, task.sequence, tile, stages + stage * stage_elements,
                                 row_numbers + stage * 2 * queries);
  };

  TokenBlocks<Tiles::keys> block(p.n_key, task.index);
  while (block.next(p, task.sequence, p.n_key, p.n_query)) {
    QueryTiles tile(p, block, task.head, queries, any_kept(kept, block.first, block.count));
    [[maybe_unused]] float d_key[with_key ? m_tiles : 1][with_key ? width / 8 : 1][4],
        d_value[with_value ? m_tiles : 1][with_value ? width / 8 : 1][4];
    if constexpr (with_key) set_zero(d_key);
    if constexpr (with_value) set_zero(d_value);
    KeyRows rows{key_tile + warp_row * ld, value_tile + warp_row * ld, block.first + warp_row + lane / 4};
    rows.find_kept<2 * m_tiles>(kept, block.first + block.count);
    const bool all_kept = !__syncthreads_or(rows.kept != (1u << (2 * m_tiles)) - 1);
    if (tile.exists()) {
      load_tile<width, Tiles::keys>(key_tile, p.key, p.key.head(task.sequence, task.head), block.first, block.count,
                                    p.d_key_width);
      if constexpr (with_key) {
        load_tile<width, Tiles::keys>(value_tile, p.value, p.value.head(task.sequence, task.head), block.first,
                                      block.count, p.d_value_width);
      }
      load(tile, 0);
      cp_async_commit();
    }
    std::conditional_t<Tiles::holds_keys, HeldRows<width, m_tiles>, const Bf16*> keys;
    if constexpr (Tiles::holds_keys) {
      cp_async_wait<0>();
      __syncthreads();
      if (tile.exists()) keys.load(rows.keys, p.d_key_width, lane);
    } else {
      keys = rows.keys;
    }
    for (int stage = 0; tile.exists(); stage = (stage + 1) % Tiles::stages) {
      QueryTiles following = tile;
      following.advance();
      if constexpr (Tiles::stages == 2) {
        if (following.exists()) load(following, stage ^ 1);
        cp_async_commit();
      }
      cp_async_wait<Tiles::stages - 1>();
      __syncthreads();
      const int position = p.first_query_position + tile.first, count = tile.count();
      const bool whole = all_kept && count == queries && block.first >= position + queries - 1 - p.behind &&
                         block.first + block.count <= position + p.ahead + 1;
      const Bf16 *const query_tile = stages + stage * stage_elements, *const d_output_tile =
                                                                          query_tile + tile_elements<width>(queries);
      const float* const numbers = row_numbers + stage * 2 * queries;
      // 16 at a time, to limit registers. Queries after `count`, in the last tile of a head, are zeros and hidden: to
      // end the loop before them would spill registers on sm_80.
      FURLONG_UNROLL_ONCE
      for (int i = 0; i < queries; i += 16) {
        const QueryPart part{query_tile + i * ld,   d_output_tile + i * ld, numbers + i,
                             numbers + queries + i, position + i,           count - i};
        add_queries<width, with_key, with_value, m_tiles>(d_key, d_value, p, keys, rows, part, whole, lane);
      }
      __syncthreads();
      if constexpr (Tiles::stages == 1) {
        if (following.exists()) load(following, 0);
        cp_async_commit();
      }
      tile = following;
    }
    cp_async_wait<0>();
    // Key and value may be one variable: then both gradients go to the same elements, each by the same thread in this
    // order.
    const int first = block.first + warp_row, end = block.first + block.count;
    if constexpr (with_key) {
      if (p.d_key.data)
        store_gradient_rows(p.d_key, p.d_key.head(task.sequence, task.head), first, end, p.d_key_width, d_key, p.scale,
                            lane);
    }
    if constexpr (with_value) {
      if (p.d_value.data)
        store_gradient_rows(p.d_value, p.d_value.head(task.sequence, task.head), first, end, p.d_value_width, d_value,
                            1.0f, lane);
    }
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
