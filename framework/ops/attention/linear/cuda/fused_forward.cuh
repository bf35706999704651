#pragma once
// Outputs of linear attention in the fused kernels. A block processes one segment of one head, chunk by chunk, with the
// sum over all earlier keys (S, z and their maxima) in shared memory. Within a chunk it goes through the feature tiles:
//   keys     features of the warp's 16 keys, normalized by each key's running maximum s_j, go to shared memory
//   queries  features of its 16 queries: against S under the running maximum t_i, against the keys of the chunk
//            under r_i: P_ij
//   keys     2^(b_jf - c_f) under the new maximum c_f of each feature: S and z of this tile
// After the last tile it computes weights of pairs from P, r, s under top_i = max(t_i, largest pair). When a running
// maximum of a row rises, earlier sums are rescaled (Milakov and Gimelshein 2018). So features of a tile are computed
// once and never stored.
#include "framework/ops/attention/linear/cuda/fused_forward_memory.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <bool Exact, bool Projected>
class FusedOutputsBlock : FusedOutputsMemory<Exact, Projected> {
  using Base = FusedOutputsMemory<Exact, Projected>;
  using Base::parts, Base::p, Base::query_side, Base::key_side, Base::out, Base::at, Base::head, Base::query, Base::key,
      Base::lane, Base::g, Base::t, Base::own, Base::has_sum, Base::load_sum, Base::load_values, Base::next_directions,
      Base::sum, Base::extra, Base::maximum, Base::column_maximum, Base::column_factor, Base::key_maximum,
      Base::key_shift, Base::key_plus, Base::key_minus, Base::query_plus, Base::query_minus, Base::bad, Base::normal,
      Base::weights, Base::random_projection, Base::values_of, Base::run_start, Base::slice, Base::width,
      Base::computes, Base::write;
  using Sums = float (&)[8][4];
  using ConstSums = const float (&)[8][4];

 public:
  using Base::Base;

  __device__ void run(const FusedStates& states, bool has_start) {
    const int segment = static_cast<int>(blockIdx.x), begin = segment * p.segment_chunks * fused_chunk;
    int end = gpu_min(query_side.n, begin + p.segment_chunks * fused_chunk);
    if constexpr (Exact) {
      const int chunks = out.lost.chunks_to_compute(static_cast<int>(blockIdx.z), begin, end, false);
      if (chunks == 0) return;
      end = gpu_min(end, begin + chunks * fused_chunk);
    }
    has_sum = has_start;
    if (has_start) load_sum(states, states.at(static_cast<int>(blockIdx.z), segment, p.causal));
    if constexpr (Projected) load_directions(p, head, 0, random_projection());
    if (p.causal && at.stages > 1) load_values(begin, 0);
    cp_async_commit();
    int turn = 0;
    for (int first = begin; first < end; first += fused_chunk, ++turn)
      chunk(first, gpu_min(end, first + fused_chunk), end, turn);
  }

 private:
  // ---- one chunk ----

  __device__ void chunk(int first, int end, int segment_end, int turn) {
    const int tiles = p.m_padded / fused_tile;
    const bool goes_on = p.causal && end < segment_end;
    const CarriedRun run =
        p.causal ? carried_run(run_start(), true, first, end, query_side.n) : CarriedRun{first, end, true};
    float outputs[8][4], denominators[1][4], products[8][4];
    clear(outputs);
    clear(denominators);
    clear(products);
    RowTerms key_terms[2], query_terms[2];
    row_terms<Projected>(p, query, first + own, query_terms);
    if (p.causal) row_terms<Projected>(p, key, first + own, key_terms);
    float past_top[2], query_top[2], key_top[2];
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      past_top[half] = query_top[half] = key_top[half] = fused_nothing;
      if (p.values) query_top[half] = 0.0f, key_top[half] = key_terms[half].shift;
    }
    bool has_bad = false;
    for (int tile = 0; tile < tiles; ++tile) {
      if (at.stages == 1) {
        __syncthreads();  // all warps have read the previous tiles
        if constexpr (Projected) {
          if (tiles > 1) load_directions(p, head, tile, random_projection());
        }
        if (tile == 0 && p.causal) load_values(first, turn);
        cp_async_commit();
      }
      cp_async_wait<0>();
      __syncthreads();
      const Bf16* omega = next_directions(turn * tiles + tile, tile, tiles, end < segment_end || tile + 1 < tiles);
      if (tile == 0) {
        if (goes_on && at.stages > 1) load_values(end, turn + 1);
        if (p.causal) has_bad = take_out_bad_values(values_of(turn), width(), bad());
      }
      cp_async_commit();
      if (p.causal) {
        float features[8][4];
        features_of_rows<Projected>(p, head, key, first + own, tile, omega, key_terms, features);
        normalize_keys(features, key_top);
        keep_column_maxima(features, key_terms, first, run);
        __syncthreads();
        if (goes_on) weigh_keys(features, key_terms, first, run, tile);
      }
      query_tile(first, tile, omega, query_terms, past_top, query_top, outputs, denominators[0], products);
      if (goes_on) {
        __syncthreads();
        advance_sum(values_of(turn), run, first, tile, has_bad);
      }
    }
    if (p.causal) keep_terms(key_terms, query_terms, key_top);
    finish(first, turn, has_bad, past_top, query_top, outputs, denominators, products);
    has_sum = has_sum || goes_on;
  }

  // ---- keys ----

  /// Writes 2^(feature - running maximum of the key) to shared memory, and rescales earlier products if that maximum
  /// rises.
  __device__ __forceinline__ void normalize_keys(ConstSums features, float (&top)[2]) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = own + g + 8 * half;
      float most = top[half];
      if (!p.values) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) most = gpu_max(most, gpu_max(features[n][2 * half], features[n][2 * half + 1]));
        most = quad_max(most);
      }
      if (t == 0) column_factor()[row] = p.values ? 1.0f : exp2_fast(top[half] - most);
      top[half] = most;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        float low = features[n][2 * half], high = features[n][2 * half + 1];
        if (!p.values) low = exp2_fast(low - most), high = exp2_fast(high - most);
        normal().put(row, 8 * n + 2 * t, low, high);
      }
    }
  }
  __device__ __forceinline__ void keep_column_maxima(ConstSums features, const RowTerms (&terms)[2], int first,
                                                     const CarriedRun& run) {
    const float row_shift[2] = {terms[0].shift, terms[1].shift}, none[2] = {0.0f, 0.0f};
    const int row = first + own + g;
    const bool counts[2] = {row >= run.from && row < run.until, row + 8 >= run.from && row + 8 < run.until};
    column_maxima(p, features, row_shift, none, counts, column_maximum() + 4 * own);
  }
  __device__ __forceinline__ float raised(int tile, int place, bool keeps) const {
    float most = keeps && has_sum ? maximum()[tile * fused_tile + place] : fused_nothing;
    FURLONG_UNROLL
    for (int warp = 0; warp < fused_warps; ++warp) most = gpu_max(most, column_maximum()[64 * warp + place]);
    return most;
  }
  /// Computes each key's term in the tile's sum: 2^(feature - c), under the maximum to which the chunk raises c.
  __device__ __forceinline__ void weigh_keys(ConstSums features, const RowTerms (&terms)[2], int first,
                                             const CarriedRun& run, int tile) {
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      const int place = 8 * n + 2 * t;
      const float low = raised(tile, place, run.keeps), high = raised(tile, place + 1, run.keeps);
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first + own + g + 8 * half;
        const bool counts = row >= run.from && row < run.until;
        weights().put(own + g + 8 * half, place,
                      counts ? weighted(p, features[n][2 * half], terms[half].shift, -low) : 0.0f,
                      counts ? weighted(p, features[n][2 * half + 1], terms[half].shift, -high) : 0.0f);
      }
    }
  }
  /// Advances Sᵀ [width(), features] and z of the tile; the warp owns features [own, own + 16).
  __device__ __forceinline__ void advance_sum(const Tile<parts>& v, const CarriedRun& run, int first, int tile,
                                              bool has_bad) {
    float added[8][4], ones[2][4];  // blocks of 16 columns of v by two of 8 features
    clear(added);
    clear(ones);
    OperandA<1> one;  // a row of ones, to sum up the weights
    one.set(0, g == 0 ? 1.0f : 0.0f, g == 0 ? 1.0f : 0.0f);
    one.set(1, 0.0f, 0.0f);
    one.set(2, g == 0 ? 1.0f : 0.0f, g == 0 ? 1.0f : 0.0f);
    one.set(3, 0.0f, 0.0f);
    FURLONG_UNROLL
    for (int k = 0; k < fused_chunk; k += 16) {
      OperandB<parts> b[2];
      weights().b_transposed(k, own, b);
      FURLONG_UNROLL
      for (int column = 0; column < 4; ++column) {
        if (16 * column >= width()) continue;
        const OperandA<parts> a = v.a_transposed(k, 16 * column);
        multiply(added[2 * column], a, b[0]);
        multiply(added[2 * column + 1], a, b[1]);
      }
      multiply(ones[0], one, b[0]);
      multiply(ones[1], one, b[1]);
    }
    const bool keeps = run.keeps && has_sum;
    FURLONG_UNROLL
    for (int block = 0; block < 2; ++block) {
      const int place = own + 8 * block + 2 * t, f = tile * fused_tile + place;
      const float after_low = raised(tile, place, run.keeps), after_high = raised(tile, place + 1, run.keeps);
      const float low = keeps ? exp2_fast(maximum()[f] - after_low) : 0.0f,
                  high = keeps ? exp2_fast(maximum()[f + 1] - after_high) : 0.0f;
      FURLONG_UNROLL
      for (int column = 0; column < 4; ++column) {
        FURLONG_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int c = 16 * column + g + 8 * half;
          if (c >= width()) continue;
          auto* target = reinterpret_cast<Vector<float, 2>*>(sum() + c * at.ld_sum + f);
          Vector<float, 2> both{{0.0f, 0.0f}};
          if (keeps) both = *target;
          both[0] = gpu_fma(both[0], low, added[2 * column + block][2 * half]);
          both[1] = gpu_fma(both[1], high, added[2 * column + block][2 * half + 1]);
          if (has_bad && (bad()[c] >> (run.from - first)) != 0) both[0] = both[1] = __int_as_float(0x7fffffff);
          *target = both;
        }
      }
      __syncwarp();
      if (g != 0) continue;
      extra()[f] = gpu_fma(keeps ? extra()[f] : 0.0f, low, ones[block][0]);
      extra()[f + 1] = gpu_fma(keeps ? extra()[f + 1] : 0.0f, high, ones[block][1]);
      maximum()[f] = after_low, maximum()[f + 1] = after_high;
    }
  }

  // ---- queries ----

  __device__ __forceinline__ void query_tile(int first, int tile, const Bf16* omega, const RowTerms (&terms)[2],
                                             float (&past_top)[2], float (&query_top)[2], Sums outputs,
                                             float (&denominators)[4], Sums products) {
    float features[8][4];
    features_of_rows<Projected>(p, head, query, first + own, tile, omega, terms, features);
    if (has_sum) add_past(features, tile, past_top, outputs, denominators);
    if (p.causal) add_products(features, query_top, products);
  }

  /// outputs += 2^(feature + c - t) S, under the row's running maximum t.
  __device__ __forceinline__ void add_past(ConstSums features, int tile, float (&top)[2], Sums outputs,
                                           float (&denominators)[4]) {
    const float* c = maximum() + tile * fused_tile + 2 * t;
    float shift[2], before[2];
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = top[half];
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) most = gpu_max(most, log_size(p, features[n][2 * half + e], 0.0f) + c[8 * n + e]);
      }
      most = quad_max(most);
      before[half] = exp2_fast(top[half] - most);
      top[half] = most;
      shift[half] = most < fused_nothing / 2 ? -fused_nothing : most;  // only masked keys: every weight is zero
    }
    FURLONG_UNROLL
    for (int e = 0; e < 4; ++e) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) outputs[n][e] *= before[e >> 1];
      denominators[e] *= before[e >> 1];
    }
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      OperandA<parts> a;
      FURLONG_UNROLL
      for (int word = 0; word < 4; ++word) {
        const int n = 2 * k + (word >> 1), half = word & 1;
        a.set(word, weighted(p, features[n][2 * half], 0.0f, c[8 * n] - shift[half]),
              weighted(p, features[n][2 * half + 1], 0.0f, c[8 * n + 1] - shift[half]));
      }
      const int f = tile * fused_tile + 16 * k + 2 * t;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        if (8 * n >= width()) continue;
        multiply(outputs[n], a, sum_operand(sum() + (8 * n + g) * at.ld_sum + f));
      }
      OperandB<2> z;
      z.set(0, g == 0 ? extra()[f] : 0.0f, g == 0 ? extra()[f + 1] : 0.0f);
      z.set(1, g == 0 ? extra()[f + 8] : 0.0f, g == 0 ? extra()[f + 9] : 0.0f);
      multiply(denominators, a, z);
    }
  }
  __device__ __forceinline__ static OperandB<2> sum_operand(const float* address) {
    const auto low = load_vector<2>(address), high = load_vector<2>(address + 8);
    OperandB<2> b;
    b.set(0, low[0], low[1]);
    b.set(1, high[0], high[1]);
    return b;
  }

  /// products += 2^(query feature - r) · 2^(key feature - s), with the running maxima r and s of the rows. Keys after
  /// the warp's last query are skipped.
  __device__ __forceinline__ void add_products(Sums features, float (&top)[2], Sums products) {
    if (!p.values) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        float most = top[half];
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) most = gpu_max(most, gpu_max(features[n][2 * half], features[n][2 * half + 1]));
        most = quad_max(most);
        const float before = exp2_fast(top[half] - most);
        top[half] = most;
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) {
          FURLONG_UNROLL
          for (int e = 0; e < 2; ++e) {
            features[n][2 * half + e] = exp2_fast(features[n][2 * half + e] - most);
            products[n][2 * half + e] *= before * column_factor()[8 * n + 2 * t + e];
          }
        }
      }
    }
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      OperandA<parts> a;
      a.from_accumulators(features, k);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        if (8 * n > own) continue;
        OperandB<parts> b[2];
        normal().b(8 * n, 16 * k, b);
        multiply(products[n], a, b[0]);
        multiply(products[n + 1], a, b[1]);
      }
    }
  }

  // ---- after the last tile ----

  __device__ __forceinline__ void keep_terms(const RowTerms (&keys)[2], const RowTerms (&queries)[2],
                                             const float (&top)[2]) {
    if (t == 0) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = own + g + 8 * half;
        key_maximum()[row] = top[half];
        key_shift()[row] = keys[half].shift, key_plus()[row] = keys[half].log_plus,
        key_minus()[row] = keys[half].log_minus;
        query_plus()[row] = queries[half].log_plus, query_minus()[row] = queries[half].log_minus;
      }
    }
    __syncthreads();
  }

  /// Returns bit 4 n + e if the pair's product has underflowed; it then holds the logarithm of its weight instead.
  __device__ __forceinline__ std::uint32_t recompute_products(int first, std::uint32_t visible, Sums products) {
    std::uint32_t lost = 0;
    if (p.values) return lost;
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) {
        const bool small =
            products[n][e] < fused_min_product && key_maximum()[8 * n + 2 * t + (e & 1)] > fused_nothing / 2;
        lost |= small ? 1u << (4 * n + e) : 0u;
      }
    }
    lost &= visible;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (!computes(first, own + g + 8 * half)) lost &= ~(0x33333333u << 2 * half);
    }
    std::uint32_t left = lost;
    while (true) {
      const std::uint32_t lanes = __ballot_sync(full_warp, left != 0);
      if (lanes == 0) return lost;
      const int leader = __ffs(static_cast<int>(lanes)) - 1;
      const int slot = __shfl_sync(full_warp, __ffs(static_cast<int>(left)) - 1, leader);
      const int row = own + (leader >> 2) + 8 * ((slot >> 1) & 1),
                column = 8 * (slot >> 2) + 2 * (leader & 3) + (slot & 1);
      const RowTerms q{0.0f, query_plus()[row], query_minus()[row]},
          k{key_shift()[column], key_plus()[column], key_minus()[column]};
      const float weight = direct_log_weight<Projected>(p, head, query, q, first + row, key, k, first + column);
      if (lane == leader) left &= left - 1;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) products[n][e] = lane == leader && 4 * n + e == slot ? weight : products[n][e];
      }
    }
  }

  /// Returns bit 4 n + e if the key of the accumulator's column is visible to the query of its row.
  __device__ __forceinline__ std::uint32_t visible_pairs(int first) const {
    std::uint32_t visible = 0;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = own + g + 8 * half;
      const int start = run_start() && first + i < query_side.n
                            ? static_cast<int>(gpu_max(run_start()[first + i], first) - first)
                            : 0;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int j = 8 * n + 2 * t + e;
          visible |= j >= start && j <= i ? 1u << (4 * n + 2 * half + e) : 0u;
        }
      }
    }
    return visible;
  }

  __device__ __forceinline__ void finish(int first, int turn, bool has_bad, float (&past_top)[2],
                                         const float (&query_top)[2], Sums outputs, float (&denominators)[1][4],
                                         Sums products) {
    float top[2];
    std::uint32_t visible = 0, lost = 0;
    if (p.causal) {
      visible = visible_pairs(first);
      lost = recompute_products(first, visible, products);
    }
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + own + g + 8 * half;
      // The query's document starts in this chunk, so the carried sum belongs to another document.
      const bool fresh = !has_sum || (run_start() && row < query_side.n && run_start()[row] >= first);
      if (fresh) past_top[half] = fused_nothing;
      float most = fused_nothing;
      if (p.causal) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) {
          FURLONG_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int slot = 4 * n + 2 * half + e;
            const float product = products[n][2 * half + e], s = key_maximum()[8 * n + 2 * t + e];
            float log_weight = p.values ? s : lost >> slot & 1u ? product - query_top[half] : s + floor_log2(product);
            most = visible >> slot & 1u ? gpu_max(most, log_weight) : most;
          }
        }
        most = quad_max(most) + query_top[half];
      }
      top[half] = gpu_max(most, past_top[half]);
      if (top[half] < fused_nothing / 2) top[half] = -fused_nothing;  // no visible key: every weight is zero
      const float factor = fresh ? 0.0f : exp2_fast(past_top[half] - top[half]);
      FURLONG_UNROLL
      for (int e = 0; e < 2; ++e) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) outputs[n][2 * half + e] = fresh ? 0.0f : outputs[n][2 * half + e] * factor;
        denominators[0][2 * half + e] = fresh ? 0.0f : denominators[0][2 * half + e] * factor;
      }
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int slot = 4 * n + 2 * half + e;
          const float product = products[n][2 * half + e], s = p.causal ? key_maximum()[8 * n + 2 * t + e] : 0.0f;
          const float weight = lost >> slot & 1u ? exp2_fast(product - top[half])
                                                 : product * exp2_fast((s - top[half]) + query_top[half]);
          products[n][2 * half + e] = visible >> slot & 1u ? weight : 0.0f;
        }
      }
    }
    if (p.causal) add_pairs(values_of(turn), outputs, denominators[0], products);
    write(first, top, has_bad, outputs, denominators[0]);
  }

  /// outputs += weights · v, and the row's sum of the rounded weights.
  __device__ __forceinline__ void add_pairs(const Tile<parts>& v, Sums outputs, float (&denominators)[4],
                                            ConstSums pair_weights) {
    OperandB<1> ones;
    ones.set(0, g == 0 ? 1.0f : 0.0f, g == 0 ? 1.0f : 0.0f);
    ones.set(1, g == 0 ? 1.0f : 0.0f, g == 0 ? 1.0f : 0.0f);
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (16 * k > own) continue;
      OperandA<parts> a;
      a.from_accumulators(pair_weights, k);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        if (8 * n >= width()) continue;
        OperandB<parts> b[2];
        v.b_transposed(16 * k, 8 * n, b);
        multiply(outputs[n], a, b[0]);
        multiply(outputs[n + 1], a, b[1]);
      }
      multiply(denominators, a, ones);
    }
  }
};

/// Grid: (segments, slices of v, batch · n_heads). `has_start`: `states` holds the state at the start of each segment.
template <bool Exact, bool Projected>
__global__ void __launch_bounds__(fused_threads, Exact ? 2 : 1)
    fused_outputs(FusedProblem p, FusedSide queries, FusedSide keys, FusedStates states, bool has_start,
                  FusedOutputs outputs, OutputsLayout<Exact, Projected> layout) {
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  FusedOutputsBlock<Exact, Projected>(p, queries, keys, outputs, layout, memory).run(states, has_start);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
