#pragma once
// Forward of softmax attention in float32 and float64.
#include "framework/ops/attention/softmax/cuda/fma_tiles.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <class T>
inline constexpr std::size_t fma_forward_bytes = 2 * fma_tile_elements * sizeof(T);

template <class T, int width>
__global__ void __launch_bounds__(fma_threads, 1) softmax_forward_fma(const SoftmaxProblem<T> p) {
  constexpr int keys = 64, chunks = width / 64;
  const int first_column = static_cast<int>(blockIdx.y) * width;
  FURLONG_DYNAMIC_SHARED(T, pieces);
  T* const weights = pieces + fma_tile_elements;  // [key, query]
  const FmaPlace place;
  const BlockTask task = block_task(p.batch, p.n_heads, true);
  const int kv_head = task.head / p.heads_per_kv();
  const T *const key_head = p.key.head(task.sequence, kv_head), *const value_head =
                                                                    p.value.head(task.sequence, kv_head);
  const std::int32_t* const kept = p.kept_keys(task.sequence);

  TokenBlocks<fma_rows> block(p.n_query, task.index);
  while (block.next(p, task.sequence, p.n_query, p.n_key)) {
    const int position = p.first_query_position + block.first;
    const FmaRows<T> queries(p.query, p.query.head(task.sequence, task.head), block.first, block.count, p.d_key_width);
    T output[chunks][4][4], maximum[4], sum[4];
    set_zero(output);
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) {
      maximum[i] = gpu_lowest<T>();
      sum[i] = T{0};
    }
    KeyTile<keys> tile;
    tile.find(kept, greater(block.begin, position - p.behind), lesser(block.end, position + block.count + p.ahead));
    while (tile.exists()) {
      const bool whole = is_whole(p, tile, position, block.count);
      T scores[1][4][4];
      set_zero(scores);
      add_row_products(scores[0], queries, FmaRows<T>(p.key, key_head, tile.first, tile.count(), p.d_key_width), pieces,
                       place);
      T shrink[4];
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        const VisibleRange visible = visible_keys(p, position + place.row + i, tile.first, keys);
        T most = maximum[i];
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) {
          T& score = scores[0][i][j];
          score = p.negative ? -score : score;
          if (!whole && !(tile.keeps(place.column + j) && visible.holds(place.column + j))) score = gpu_lowest<T>();
          most = gpu_max(most, score);
        }
        FURLONG_UNROLL
        for (int step = 8; step > 0; step /= 2) most = gpu_max(most, __shfl_xor_sync(full_warp, most, step));
        // A row without visible keys has weights 2^-infinity under any finite maximum.
        // With an unchanged maximum the factor must be 1, so both products are rounded.
        const T shift = most == gpu_lowest<T>() ? T{0} : rounded_product(most, p.exponent_scale);
        shrink[i] = gpu_exp2(rounded_product(maximum[i], p.exponent_scale) - shift);
        maximum[i] = most;
        sum[i] *= shrink[i];
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) {
          T& score = scores[0][i][j];
          score = gpu_exp2(gpu_fma(score, p.exponent_scale, -shift));
          sum[i] += score;
        }
        FURLONG_UNROLL
        for (int c = 0; c < chunks; ++c) {
          FURLONG_UNROLL
          for (int j = 0; j < 4; ++j) output[c][i][j] *= shrink[i];
        }
      }
      store_weights(weights, scores[0], place);
      const FmaRows<T> values(p.value, value_head, tile.first, tile.count(), p.d_value_width);
      if (whole) {
        add_weighted_rows<false>(output, weights, values, first_column, EveryRow{}, pieces, place);
      } else {
        add_weighted_rows<true>(output, weights, values, first_column, tile, pieces, place);
      }
      tile.find(kept, tile.first + keys, tile.end);
    }
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) {
      FURLONG_UNROLL
      for (int step = 8; step > 0; step /= 2) sum[i] += __shfl_xor_sync(full_warp, sum[i], step);
      const int row = block.first + place.row + i;
      if (place.row + i >= block.count) continue;
      if (p.log_sum_exp && place.column == 0 && blockIdx.y == 0) {
        p.log_sum_exp[p.row(task.sequence, task.head, row)] =
            sum[i] == T{0} ? gpu_lowest<T>()
                           : gpu_fma(maximum[i] * p.exponent_scale, static_cast<T>(ln_2), gpu_log(sum[i]));
      }
      const T inverse = sum[i] == T{0} ? T{0} : T{1} / sum[i];
      T* const target = p.output.head(task.sequence, task.head) + row * p.output.row_stride;
      FURLONG_UNROLL
      for (int c = 0; c < chunks; ++c) {
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) {
          const int column = first_column + c * 64 + place.column + j;
          // Adding zero makes a zero positive: its sign could come from a value that is not visible.
          if (column < p.d_value_width) target[column] = output[c][i][j] * inverse + T{0};
        }
      }
    }
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
