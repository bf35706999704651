#pragma once
// Backward of softmax attention in float32 and float64, with the formulas and the two kernels of backward_mma.cuh.
#include "framework/ops/attention/softmax/cuda/fma_tiles.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Shared memory for the pieces of operands and `tiles` tiles of weights or score gradients.
template <class T, int tiles>
inline constexpr std::size_t fma_backward_bytes = (1 + tiles) * fma_tile_elements * sizeof(T);

template <class T, int width>
__global__ void __launch_bounds__(fma_threads, 1) softmax_query_gradient_fma(const SoftmaxProblem<T> p) {
  constexpr int keys = 64, chunks = width / 64;
  const int first_column = static_cast<int>(blockIdx.y) * width;
  FURLONG_DYNAMIC_SHARED(T, pieces);
  T* const d_score_tile = pieces + fma_tile_elements;  // [key, query]
  const FmaPlace place;
  const BlockTask task = block_task(p.batch, p.n_heads, true);
  const int kv_head = task.head / p.heads_per_kv();
  const T *const key_head = p.key.head(task.sequence, kv_head), *const value_head =
                                                                    p.value.head(task.sequence, kv_head);
  const std::int32_t* const kept = p.kept_keys(task.sequence);
  const T exponent_scale = p.negative ? -p.exponent_scale : p.exponent_scale;

  TokenBlocks<fma_rows> block(p.n_query, task.index);
  while (block.next(p, task.sequence, p.n_query, p.n_key)) {
    const int position = p.first_query_position + block.first;
    const FmaRows<T> queries(p.query, p.query.head(task.sequence, task.head), block.first, block.count, p.d_key_width);
    const FmaRows<T> d_outputs(p.d_output, p.d_output.head(task.sequence, task.head), block.first, block.count,
                               p.d_value_width);
    T d_query[chunks][4][4], log_sum_exp[4], row_dots[4];
    set_zero(d_query);
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool inside = place.row + i < block.count;
      const std::int64_t row = p.row(task.sequence, task.head, block.first + place.row + i);
      log_sum_exp[i] = inside ? p.log_sum_exp[row] * static_cast<T>(log2_e) : T{0};
      row_dots[i] = inside ? p.row_dots[row] : T{0};
    }
    KeyTile<keys> tile;
    tile.find(kept, greater(block.begin, position - p.behind), lesser(block.end, position + block.count + p.ahead));
    while (tile.exists()) {
      const FmaRows<T> key_rows(p.key, key_head, tile.first, tile.count(), p.d_key_width);
      T scores[1][4][4], d_scores[1][4][4];
      set_zero(scores);
      set_zero(d_scores);
      add_row_products(scores[0], queries, key_rows, pieces, place);
      add_row_products(d_scores[0], d_outputs,
                       FmaRows<T>(p.value, value_head, tile.first, tile.count(), p.d_value_width), pieces, place);
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        const VisibleRange visible = visible_keys(p, position + place.row + i, tile.first, keys);
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) {
          const T weight = gpu_exp2(gpu_fma(scores[0][i][j], exponent_scale, -log_sum_exp[i]));
          const bool is_visible = tile.keeps(place.column + j) && visible.holds(place.column + j);
          d_scores[0][i][j] = is_visible ? weight * (d_scores[0][i][j] - row_dots[i]) : T{0};
        }
      }
      store_weights(d_score_tile, d_scores[0], place);
      add_weighted_rows<false>(d_query, d_score_tile, key_rows, first_column, tile, pieces, place);
      tile.find(kept, tile.first + keys, tile.end);
    }
    store_gradient_rows(p.d_query, p.d_query.head(task.sequence, task.head), block.first, block.count, first_column,
                        p.d_key_width, d_query, p.scale, place);
  }
}

/// Wide heads use separate launches for d_key and d_value, because registers do not hold the sums of both.
template <class T, int width, bool with_key, bool with_value>
__global__ void __launch_bounds__(fma_threads, 1) softmax_key_gradient_fma(const SoftmaxProblem<T> p) {
  constexpr int chunks = width / 64;
  const int first_column = static_cast<int>(blockIdx.y) * width;
  FURLONG_DYNAMIC_SHARED(T, pieces);
  T* const weight_tile = pieces + fma_tile_elements;  // [query, key], like d_score_tile
  T* const d_score_tile = with_key && with_value ? weight_tile + fma_tile_elements : weight_tile;
  const FmaPlace place;
  const BlockTask task = block_task(p.batch, p.n_kv_heads, false);
  const std::int32_t* const kept = p.kept_keys(task.sequence);
  const T exponent_scale = p.negative ? -p.exponent_scale : p.exponent_scale;

  TokenBlocks<fma_rows> block(p.n_key, task.index);
  while (block.next(p, task.sequence, p.n_key, p.n_query)) {
    QueryTiles tile(p, block, task.head, fma_rows, any_kept(kept, block.first, block.count));
    const FmaRows<T> key_rows(p.key, p.key.head(task.sequence, task.head), block.first, block.count, p.d_key_width),
        value_rows(p.value, p.value.head(task.sequence, task.head), block.first, block.count, p.d_value_width);
    [[maybe_unused]] T d_key[with_key ? chunks : 1][4][4], d_value[with_value ? chunks : 1][4][4];
    set_zero(d_key);
    set_zero(d_value);
    for (; tile.exists(); tile.advance()) {
      const int position = p.first_query_position + tile.first;
      const int count = tile.count();
      const FmaRows<T> queries(p.query, p.query.head(task.sequence, tile.head), tile.first, count, p.d_key_width),
          d_outputs(p.d_output, p.d_output.head(task.sequence, tile.head), tile.first, count, p.d_value_width);
      // Rows are keys, columns are queries.
      T weights[1][4][4], d_scores[1][4][4];
      set_zero(weights);
      set_zero(d_scores);
      add_row_products(weights[0], key_rows, queries, pieces, place);
      if constexpr (with_key) add_row_products(d_scores[0], value_rows, d_outputs, pieces, place);
      FURLONG_UNROLL
      for (int j = 0; j < 4; ++j) {
        const bool inside = place.column + j < count;
        const std::int64_t row = p.row(task.sequence, tile.head, tile.first + place.column + j);
        const T log_sum_exp = inside ? p.log_sum_exp[row] * static_cast<T>(log2_e) : T{0},
                row_dot = inside ? p.row_dots[row] : T{0};
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = block.first + place.row + i;
          const bool is_visible = place.row + i < block.count && (!kept || kept[key] != 0) &&
                                  queries_of_key(p, key, position, count).holds(place.column + j);
          const T weight = gpu_exp2(gpu_fma(weights[0][i][j], exponent_scale, -log_sum_exp));
          weights[0][i][j] = is_visible ? weight : T{0};
          d_scores[0][i][j] = is_visible ? weight * (d_scores[0][i][j] - row_dot) : T{0};
        }
      }
      if constexpr (with_value) {
        store_weights(weight_tile, weights[0], place);
        add_weighted_rows<false>(d_value, weight_tile, d_outputs, first_column, EveryRow{}, pieces, place);
      }
      if constexpr (with_key) {
        store_weights(d_score_tile, d_scores[0], place);
        add_weighted_rows<false>(d_key, d_score_tile, queries, first_column, EveryRow{}, pieces, place);
      }
    }
    // Key and value may be one variable: then both gradients go to the same elements, each by the same thread in this
    // order.
    if constexpr (with_key) {
      if (p.d_key.data)
        store_gradient_rows(p.d_key, p.d_key.head(task.sequence, task.head), block.first, block.count, first_column,
                            p.d_key_width, d_key, p.scale, place);
    }
    if constexpr (with_value) {
      if (p.d_value.data)
        store_gradient_rows(p.d_value, p.d_value.head(task.sequence, task.head), block.first, block.count, first_column,
                            p.d_value_width, d_value, T{1}, place);
    }
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
