#pragma once
// Outputs of linear attention in the plain case (fused_plain.cuh). A block processes one segment of one head and 64
// columns of v, chunk by chunk, with the sum over all earlier keys in shared memory: S and z of each feature tile under
// one integer scale, the largest of its keys. Within a chunk it goes through the feature tiles:
//   keys     features of the warp's 16 keys, each under its own scale, go to shared memory
//   queries  features of its 16 queries: with the keys of the chunk, P_ij, and with S and z
//   keys     S and z of this tile, from the same features, moved to the tile's scale
// After the last tile it computes weights of pairs from P and the scales of keys.
#include "framework/ops/attention/linear/cuda/fused_forward_memory.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <FusedForm form, int D>
class PlainOutputsBlock {
  using Layout = PlainOutputsLayout<form, D>;
  using Sums = float (&)[8][4];
  using ConstSums = const float (&)[8][4];
  static constexpr bool projected = Layout::projected;

 public:
  __device__ PlainOutputsBlock(const FusedProblem& problem, const FusedSide& queries, const FusedSide& keys,
                               const FusedOutputs& outputs, unsigned char* shared)
      : p(problem),
        query_side(queries),
        key_side(keys),
        out(outputs),
        memory(shared),
        head(fused_head(problem, static_cast<int>(blockIdx.z))),
        factor(head.factor * log2_of_e),
        lane(lane_index()),
        g(lane >> 2),
        t(lane & 3),
        own(16 * warp_index()) {}

  __device__ void run(const FusedStates& states, bool has_start) {
    const int segment = static_cast<int>(blockIdx.x), begin = segment * p.segment_chunks * fused_chunk;
    end = gpu_min(query_side.n, begin + p.segment_chunks * fused_chunk);
    has_sum = has_start;
    load_sum(states, states.at(static_cast<int>(blockIdx.z), segment, true), has_start);
    if constexpr (projected) plain_load_projection<D>(p, head, 0, omega(0));
    load_values(begin, 0);
    cp_async_commit();
    load_rows(begin);
    int turn = 0;
    for (int first = begin; first < end; first += fused_chunk, ++turn) chunk(first, turn);
  }

 private:
  // ---- one chunk ----

  __device__ __forceinline__ void chunk(int first, int turn) {
    const int tiles = tile_count();
    const bool goes_on = first + fused_chunk < end;
    float outputs[8][4], denominators[4] = {}, products[8][4];
    clear(outputs);
    clear(products);
    query.prepare(p);
    key.prepare(p);
    float past_scale = fused_nothing;  // projection: outputs are under 2^(query.scale + past_scale)
    bool has_bad = false;
    FURLONG_ONE_BY_ONE
    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (D > 64) load_rows(first);  // registers do not suffice to keep them
      cp_async_wait<0>();
      __syncthreads();
      const int step = tiles == 1 ? 0 : turn * tiles + tile;
      if constexpr (projected) {
        const bool here = tiles == 1 || (tiles == 2 && step >= 1);  // all tiles are loaded
        if (!here && (goes_on || tile + 1 < tiles))
          plain_load_projection<D>(p, head, tile + 1 < tiles ? tile + 1 : 0, omega(step + 1));
      }
      if (tile == 0) {
        if (goes_on) load_values(first + fused_chunk, turn + 1);
        has_bad = take_out_bad_values(values_of(turn), 64, bad());
      }
      cp_async_commit();
      key_tile(tile, step);
      query_tile(tile, step, past_scale, outputs, denominators, products);
      if (goes_on) {
        float move = 1;
        if constexpr (projected) move = raise_tile_scale(tile);
        __syncthreads();
        advance_sum(tile, turn, move, has_bad);
      }
    }
    if (goes_on) load_rows(first + fused_chunk);  // arrives while the chunk is finished
    finish(first, turn, has_bad, past_scale, outputs, denominators, products);
    has_sum = true;
  }

  // ---- keys ----

  /// Writes the features of the warp's keys and their scales to shared memory. Ends with a barrier. Products with keys
  /// whose scale has risen are moved by query_tile().
  __device__ __forceinline__ void key_tile(int tile, int step) {
    bool raised = false;
    if constexpr (projected) {
      float features[8][4], moves[2] = {1, 1};
      key.project(omega(step), features);
      raised = key.raise(features, factor, moves);
      key.exponentiate(factor, features);
      if (t == 0) {
        FURLONG_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = own + g + 8 * half;
          key_scale()[row] = key.scale[half], key_move()[row] = moves[half], key_shift()[row] = key.plus[half];
        }
      }
      put_features([&](int half, int n) { return pack_bf16(features[n][2 * half], features[n][2 * half + 1]); });
    } else {
      put_features([&](int half, int n) { return key.rounded_values(tile, half, n); });
    }
    if constexpr (projected) {
      keys_moved = __syncthreads_or(raised) && tile > 0;
    } else {
      __syncthreads();
    }
  }
  /// Writes word(half, n), the features of row g + 8 half at places 8 n + 2 t and the next, to shared memory.
  template <class Word>
  __device__ __forceinline__ void put_features(const Word& word) const {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) normal().put_word(own + g + 8 * half, 8 * n + 2 * t, 0, word(half, n));
    }
  }
  /// Raises the tile's scale to the largest of its keys, and writes factors that move the warp's keys to it. Returns
  /// the factor that moves the sum.
  __device__ __forceinline__ float raise_tile_scale(int tile) {
    const float before = tile_scale()[tile],
                after = gpu_max(before, warp_max(gpu_max(key_scale()[lane], key_scale()[lane + 32])));
    if (lane < 16) token_scale()[own + lane] = from_compute<Bf16>(exp2_fast(key_scale()[own + lane] - after));
    __syncwarp();
    if (lane == 0) tile_scale()[tile] = after;
    return exp2_fast(before - after);
  }
  /// Adds the chunk to S and z of the tile; the warp owns features [own, own + 16).
  __device__ __forceinline__ void advance_sum(int tile, int turn, float move, bool has_bad) {
    float added[8][4], ones[2][4];  // blocks of 16 columns of v by two of 8 features
    clear(added);
    clear(ones);
    OperandA<1> one;
    FURLONG_UNROLL
    for (int word = 0; word < 4; ++word) one.set(word, 1.0f, 1.0f);
    const Tile<1> v = values_of(turn);
    FURLONG_UNROLL
    for (int k = 0; k < fused_chunk; k += 16) {
      OperandB<1> b[2];
      normal().b_transposed(k, own, b);
      if constexpr (projected) {
        FURLONG_UNROLL
        for (int word = 0; word < 2; ++word) {
          const std::uint32_t scale = *reinterpret_cast<const std::uint32_t*>(token_scale() + k + 8 * word + 2 * t);
          b[0].parts[0][word] = multiply_words(b[0].parts[0][word], scale);
          b[1].parts[0][word] = multiply_words(b[1].parts[0][word], scale);
        }
      }
      FURLONG_UNROLL
      for (int column = 0; column < 4; ++column) {
        const OperandA<1> a = v.a_transposed(k, 16 * column);
        multiply(added[2 * column], a, b[0]);
        multiply(added[2 * column + 1], a, b[1]);
      }
      multiply(ones[0], one, b[0]);
      multiply(ones[1], one, b[1]);
    }
    FURLONG_UNROLL
    for (int column = 0; column < 4; ++column) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half)
        advance_row(tile, 16 * column + g + 8 * half, move, added[2 * column], added[2 * column + 1], half);
    }
    if (g == 0) advance_row(tile, 64, move, ones[0], ones[1], 0);
    if (!has_bad) return;
    for (int c = g; c < 64; c += 8) {
      float* at = sum(tile) + plain_sum_at(c, warp_index(), t);
      const float nan = __int_as_float(0x7fffffff);
      if (bad()[c] != 0) store_vector(at, Vector<float, 4>{{nan, nan, nan, nan}});
    }
  }
  __device__ __forceinline__ void advance_row(int tile, int row, float move, const float (&low)[4],
                                              const float (&high)[4], int half) const {
    float* at = sum(tile) + plain_sum_at(row, warp_index(), t);
    auto four = load_vector<4>(at);
    four[0] = gpu_fma(four[0], move, low[2 * half]), four[1] = gpu_fma(four[1], move, low[2 * half + 1]);
    four[2] = gpu_fma(four[2], move, high[2 * half]), four[3] = gpu_fma(four[3], move, high[2 * half + 1]);
    store_vector(at, four);
  }

  // ---- queries ----

  __device__ __forceinline__ void query_tile(int tile, int step, float& past_scale, Sums outputs,
                                             float (&denominators)[4], Sums products) {
    float features[8][4];
    if constexpr (projected) {
      float moves[2];
      query.project(omega(step), features);
      if (query.raise(features, factor, moves) && tile > 0) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) {
          FURLONG_UNROLL
          for (int e = 0; e < 4; ++e) outputs[n][e] *= moves[e >> 1], products[n][e] *= moves[e >> 1];
        }
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) denominators[e] *= moves[e >> 1];
      }
      query.exponentiate(factor, features);
      if (keys_moved) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) {
          FURLONG_UNROLL
          for (int e = 0; e < 4; ++e) products[n][e] *= key_move()[8 * n + 2 * t + (e & 1)];
        }
      }
    } else {
      query.values(tile, features);
    }
    OperandA<1> a[4];
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) a[k].from_accumulators(features, k);
    FURLONG_UNROLL
    for (int n = 0; n < 8; n += 2) {
      if (8 * n > own) break;  // keys after the warp's queries
      FURLONG_UNROLL
      for (int k = 0; k < 4; ++k) {
        OperandB<1> b[2];
        normal().b(8 * n, 16 * k, b);
        multiply(products[n], a[k], b[0]);
        multiply(products[n + 1], a[k], b[1]);
      }
    }
    if (!has_sum) return;
    if constexpr (projected) meet_tile_scale(tile, past_scale, features, outputs, denominators);
    plain_multiply_sum(features, sum(tile), outputs, denominators);
  }
  /// Moves the outputs so far to the tile's scale if that is larger, or else the features to theirs.
  __device__ __forceinline__ void meet_tile_scale(int tile, float& past_scale, Sums features, Sums outputs,
                                                  float (&denominators)[4]) {
    const float scale = tile_scale()[tile];
    if (tile == 0) past_scale = scale;
    if (scale == past_scale) return;
    const float move = exp2_fast(-gpu_abs(scale - past_scale));
    if (scale > past_scale) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) outputs[n][e] *= move;
        denominators[e] *= move;
      }
      past_scale = scale;
      return;
    }
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) features[n][e] *= move;
    }
  }

  // ---- after the last tile ----

  __device__ __forceinline__ void finish(int first, int turn, bool has_bad, float past_scale, Sums outputs,
                                         float (&denominators)[4], Sums products) {
    float top[2] = {0, 0};
    bool lost[2];
    if constexpr (projected) {
      float scales[8][4];  // the pair's weight is products · 2^(scales + query.scale)
      hide_later_keys(products, scales);
      recompute_products(first, products, scales);
      stabilize(past_scale, outputs, denominators, products, scales, top, lost);
    } else {
      each_pair([&](int n, int e) { products[n][e] = is_visible(n, e) ? products[n][e] : 0.0f; });
    }
    add_pairs(values_of(turn), outputs, denominators, products);
    FURLONG_UNROLL
    for (int half = 0; half < 2 && !projected; ++half) lost[half] = denominators[2 * half] < plain_least_denominator;
    const std::uint32_t lanes[2] = {__ballot_sync(full_warp, lost[0]), __ballot_sync(full_warp, lost[1])};
    if (slice() == 0) out.lost.record(static_cast<int>(blockIdx.z), first, lanes);
    write(first, has_bad, top, lost, outputs, denominators);
  }
  /// Returns whether the query of accumulator [n][e] attends to its key.
  __device__ __forceinline__ bool is_visible(int n, int e) const {
    return 8 * n + (e & 1) - 8 * (e >> 1) <= own + g - 2 * t;
  }
  /// Calls body(n, e) for all accumulators of pairs, except blocks after the warp's queries.
  template <class Body>
  __device__ __forceinline__ void each_pair(const Body& body) const {
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      if (8 * (n & ~1) > own) break;
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) body(n, e);
    }
  }
  __device__ __forceinline__ void hide_later_keys(Sums products, Sums scales) const {
    each_pair([&](int n, int e) {
      const bool visible = is_visible(n, e);
      scales[n][e] = visible ? key_scale()[8 * n + 2 * t + (e & 1)] : fused_nothing;
      products[n][e] = visible ? products[n][e] : 1.0f;
    });
  }
  /// Recomputes pairs whose product has underflowed, from the logarithms: their product becomes 1. Rare and slow.
  __device__ __forceinline__ void recompute_products(int first, Sums products, Sums scales) const {
    bool any = false;
    each_pair([&](int n, int e) { any = any || products[n][e] < fused_min_product; });
    if (!__any_sync(full_warp, any)) return;
    std::uint32_t left = 0;
    each_pair([&](int n, int e) { left |= products[n][e] < fused_min_product ? 1u << (4 * n + e) : 0u; });
    const FusedInputs<true, false> queries(p, head, query_side);
    const FusedInputs<true, true> keys(p, head, key_side);
    while (true) {
      const std::uint32_t lanes = __ballot_sync(full_warp, left != 0);
      if (lanes == 0) return;
      const int leader = __ffs(static_cast<int>(lanes)) - 1;
      const int slot = __shfl_sync(full_warp, __ffs(static_cast<int>(left)) - 1, leader);
      const int half = (slot >> 1) & 1, row = own + (leader >> 2) + 8 * half,
                column = 8 * (slot >> 2) + 2 * (leader & 3) + (slot & 1);
      const RowTerms none{0.0f, 0.0f, 0.0f}, shifted{key_shift()[column], 0.0f, 0.0f};
      const float weight = direct_log_weight<true>(p, head, queries, none, first + row, keys, shifted, first + column) -
                           (half == 1 ? query.scale[1] : query.scale[0]);
      if (lane == leader) left &= left - 1;
      each_pair([&](int n, int e) {
        if (lane != leader || 4 * n + e != slot) return;
        products[n][e] = 1.0f, scales[n][e] = weight;
      });
    }
  }
  /// Moves outputs and weights of pairs under the largest exponent of each row.
  __device__ __forceinline__ void stabilize(float past_scale, Sums outputs, float (&denominators)[4], Sums products,
                                            ConstSums scales, float (&top)[2], bool (&lost)[2]) const {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float past = denominators[2 * half];
      const bool has_past = has_sum && past >= std::numeric_limits<float>::min();
      top[half] = has_past ? past_scale + floor_log2(past) : fused_nothing;
    }
    float most[2] = {fused_nothing, fused_nothing};
    each_pair([&](int n, int e) { most[e >> 1] = gpu_max(most[e >> 1], scales[n][e] + floor_log2(products[n][e])); });
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      top[half] = gpu_max(top[half], quad_max(most[half]));
      lost[half] = past_scale - top[half] > plain_most_exponent;
    }
    if (has_sum) {
      const float move[2] = {exp2_fast(past_scale - top[0]), exp2_fast(past_scale - top[1])};
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; ++n) outputs[n][e] *= move[e >> 1];
        denominators[e] *= move[e >> 1];
      }
    }
    each_pair([&](int n, int e) { products[n][e] *= exp2_fast(scales[n][e] - top[e >> 1]); });
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) top[half] += query.scale[half];
  }
  /// outputs += weights · v, and the row's sum of the rounded weights.
  __device__ __forceinline__ void add_pairs(const Tile<1>& v, Sums outputs, float (&denominators)[4],
                                            ConstSums pair_weights) const {
    OperandB<1> ones;
    ones.set(0, 1.0f, 1.0f);
    ones.set(1, 1.0f, 1.0f);
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (16 * k > own) break;
      OperandA<1> a;
      a.from_accumulators(pair_weights, k);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        OperandB<1> b[2];
        v.b_transposed(16 * k, 8 * n, b);
        multiply(outputs[n], a, b[0]);
        multiply(outputs[n + 1], a, b[1]);
      }
      multiply(denominators, a, ones);
    }
  }
  /// Writes the warp's outputs, divided by their denominators, and the values that backward needs.
  __device__ __forceinline__ void write(int first, bool has_bad, const float (&top)[2], const bool (&lost)[2],
                                        ConstSums outputs, const float (&denominators)[4]) const {
    const int batch = opaque(head.batch);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = own + g + 8 * half, row = first + i;
      if (row >= query_side.n || lost[half]) continue;
      const float denominator = denominators[2 * half], inverse = 1 / denominator;
      if (slice() == 0 && t == 0) {
        // The stabilizer of values is chosen last: any power of two near the denominator.
        const float shift = projected ? 0.0f : floor_log2(denominator);
        const std::int64_t line = static_cast<std::int64_t>(batch * p.n_heads + head.head) * query_side.n + row;
        if (out.top) out.top[line] = top[half] + shift;
        if (out.inverse) out.inverse[line] = inverse * exp2_fast(shift);
      }
      Bf16* target = static_cast<Bf16*>(out.output) + batch * out.batch_stride + row * out.row_stride +
                     head.head * out.head_stride + slice() + 2 * t;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        float value[2];
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          value[e] = outputs[n][2 * half + e] * inverse;
          // Keys up to i of the chunk include a value that is not finite.
          if (has_bad && bad()[8 * n + 2 * t + e] << (63 - i) != 0) value[e] = __int_as_float(0x7fffffff);
        }
        *reinterpret_cast<std::uint32_t*>(target + 8 * n) = pack_bf16(value[0], value[1]);
      }
    }
  }

  // ---- loads from global memory ----

  __device__ __forceinline__ void load_rows(int first) {
    query.rows.load(plain_rows_of(query_side.rows, head.batch, head.head, query_side.n), opaque(first + own));
    key.rows.load(plain_rows_of(key_side.rows, head.batch, head.kv_head, key_side.n), opaque(first + own));
  }
  __device__ __forceinline__ void load_values(int first, int turn) const {
    plain_load_vectors(plain_rows_of(key_side.vectors, head.batch, head.kv_head, key_side.n), first, slice(),
                       values_of(turn));
  }
  /// Loads the sum over earlier segments, which has a maximum for each feature; zeros if there is none.
  __device__ void load_sum(const FusedStates& states, std::int64_t index, bool exists) const {
    for (int tile = 0; tile < tile_count(); ++tile) {
      const std::int64_t from = index * p.m_padded + tile * fused_tile;
      float scale = projected ? fused_nothing : 0.0f;
      if (projected && exists)
        scale = ::ceilf(warp_max(gpu_max(states.maximum[from + lane], states.maximum[from + lane + 32])));
      if (projected && lane == 0) tile_scale()[tile] = scale;
      for (int i = static_cast<int>(threadIdx.x); i < plain_sum_tile; i += fused_threads) {
        const int place = i / plain_sum_rows, row = i % plain_sum_rows;
        float value = 0;
        if (exists) {
          const std::int64_t f = from + place;
          value = (row < 64 ? states.sum[f * p.d_value + slice() + row] : states.extra[f]) *
                  exp2_fast(states.maximum[f] - scale);
        }
        sum(tile)[plain_sum_place(row, place)] = value;
      }
    }
  }

  // ---- shared memory ----

  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(memory + offset); }
  __device__ __forceinline__ float* key_scale() const { return floats(Layout::key_scale); }
  __device__ __forceinline__ float* key_move() const { return floats(Layout::key_move); }
  __device__ __forceinline__ float* key_shift() const { return floats(Layout::key_shift); }
  __device__ __forceinline__ Bf16* token_scale() const { return reinterpret_cast<Bf16*>(memory + Layout::token_scale); }
  /// Each warp has its own copy.
  __device__ __forceinline__ float* tile_scale() const {
    return floats(Layout::tile_scale) + warp_index() * Layout::most_tiles;
  }
  __device__ __forceinline__ std::uint64_t* bad() const {
    return reinterpret_cast<std::uint64_t*>(memory + Layout::bad);
  }
  __device__ __forceinline__ Tile<1> normal() const {
    return {reinterpret_cast<Bf16*>(memory + Layout::normal), fused_ld, 0};
  }
  __device__ __forceinline__ Tile<1> values_of(int turn) const {
    return {reinterpret_cast<Bf16*>(memory + Layout::vectors + (turn & 1) * Layout::plane), fused_ld, 0};
  }
  __device__ __forceinline__ Bf16* omega(int step) const {
    return reinterpret_cast<Bf16*>(memory + Layout::random_projection + (step & 1) * Layout::omega_tile);
  }
  __device__ __forceinline__ float* sum(int tile) const { return floats(Layout::sum) + tile * plain_sum_tile; }

  __device__ __forceinline__ int slice() const { return static_cast<int>(blockIdx.y) * 64; }
  __device__ __forceinline__ int tile_count() const {
    if constexpr (form == FusedForm::elu1) return D / fused_tile;
    if constexpr (form == FusedForm::softmax) return 2 * D / fused_tile;
    return p.m_padded / fused_tile;
  }

  const FusedProblem& p;
  const FusedSide &query_side, &key_side;
  const FusedOutputs& out;
  unsigned char* const memory;
  const FusedHead head;
  const float factor;
  const int lane, g, t, own;
  PlainSide<form, D, false> query;
  PlainSide<form, D, true> key;
  int end = 0;
  bool has_sum = false, keys_moved = false;
};

/// Grid: (segments, D / 64, batch · n_heads). `has_start`: `states` holds the state at the start of each segment.
template <FusedForm form, int D>
__global__ void __launch_bounds__(fused_threads, 2)
    fused_plain_outputs(FusedProblem p, FusedSide queries, FusedSide keys, FusedStates states, bool has_start,
                        FusedOutputs outputs) {
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  PlainOutputsBlock<form, D>(p, queries, keys, outputs, memory).run(states, has_start);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
