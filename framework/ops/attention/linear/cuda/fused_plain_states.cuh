#pragma once
// Sums over segments (fused_states.cuh) in the plain case (fused_plain.cuh). A feature's sum is under one integer
// scale, the ceiling of its maximum over the chunk that is added first (for queries the segment's last). It rises if a
// later row is more than 2^8 above it, so that chunks need no maxima over rows: the general kernel spends most of its
// time there. Rows far below their feature's scale are the same as there: zero 2^126 below it.
#include "framework/ops/attention/linear/cuda/fused_plain.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr float plain_states_margin = 8;  // of log2 features above their scale

/// Shared memory of fused_plain_states, in bytes from its start.
template <FusedForm form, int D>
struct PlainStatesLayout {
  static constexpr int plane = fused_chunk * fused_ld * 2;
  static constexpr int maxima = 0;                               // float [4, 64]: of each warp's rows
  static constexpr int moves = maxima + fused_warps * 64 * 4;    // float [64]: by how much scales rose; at last scales
  static constexpr int extra = moves + 64 * 4;                   // float [64]
  static constexpr int weights = extra + 64 * 4;                 // tile
  static constexpr int vectors = weights + plane;                // two tiles
  static constexpr int random_projection = vectors + 2 * plane;  // tile
  static constexpr int bytes = random_projection + (form == FusedForm::projection ? fused_tile * (D + 8) * 2 : 0);
};

/// The block's segment, feature tile and 64 columns of the vectors.
template <FusedForm form, int D, bool Keys>
class PlainStatesBlock {
  using Layout = PlainStatesLayout<form, D>;
  static constexpr bool projected = form == FusedForm::projection;

 public:
  __device__ PlainStatesBlock(const FusedProblem& problem, const FusedSide& of, unsigned char* shared)
      : p(problem),
        side(of),
        memory(shared),
        head(fused_head(problem, static_cast<int>(blockIdx.z))),
        factor(head.factor * log2_of_e),
        lane(lane_index()),
        g(lane >> 2),
        t(lane & 3),
        own(16 * warp_index()) {}

  __device__ void run(const FusedStates& states) {
    const int begin = static_cast<int>(blockIdx.x) * p.segment_chunks * fused_chunk,
              chunks = ceil_div(gpu_min(side.n - begin, p.segment_chunks * fused_chunk), fused_chunk);
    const auto first_of = [&](int turn) { return begin + (Keys ? turn : chunks - 1 - turn) * fused_chunk; };
    clear(sums);
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) scale[n][0] = scale[n][1] = 0;
    if constexpr (projected) plain_load_projection<D>(p, head, tile(), projection());
    load_vectors_of(first_of(0), 0);
    load_rows(first_of(0));
    for (int turn = 0; turn < chunks; ++turn) {
      cp_async_wait<0>();
      __syncthreads();  // the vectors are here; no warp reads the other ones, or weights, any more
      if (turn + 1 < chunks) load_vectors_of(first_of(turn + 1), turn + 1);
      chunk(first_of(turn), turn, turn + 1 < chunks ? first_of(turn + 1) : -1);
    }
    write(states);
  }

 private:
  /// Adds the chunk from `first` on. `next`: the chunk after it, or -1.
  __device__ __forceinline__ void chunk(int first, int turn, int next) {
    float logs[8][4], offset[2], weight_factor[2];
    bool counts[2];
    rows.prepare(p);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int line = first + own + g + 8 * half;
      const RowWeight weight = Keys ? RowWeight{0.0f, 1.0f, 1.0f} : query_weight(p, head, side, line);
      counts[half] = line < side.n;
      offset[half] = projected ? rows.plus[half] + weight.shift : weight.shift, weight_factor[half] = weight.factor;
      if (!Keys && t == 0) extra()[own + g + 8 * half] = weight.extra;
    }
    // Stabilizer and scale may be large and nearly cancel, so they are subtracted first.
    logarithms([&](int n, int e) { return offset[e >> 1] - scale[n][e & 1]; }, logs);
    float most = fused_nothing;
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) most = gpu_max(most, counts[e >> 1] ? logs[n][e] : fused_nothing);
    }
    const bool rises = __syncthreads_or(turn == 0 || most > plain_states_margin);
    if (rises) raise(logs, offset, counts, turn == 0);
    if (next >= 0) load_rows(next);  // arrives while this chunk is added
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        float low = exp2_fast(logs[n][2 * half]), high = exp2_fast(logs[n][2 * half + 1]);
        if constexpr (!Keys) low *= weight_factor[half], high *= weight_factor[half];
        weights().put_word(own + g + 8 * half, 8 * n + 2 * t, 0, counts[half] ? pack_bf16(low, high) : 0u);
      }
    }
    __syncthreads();
    advance(turn, rises && turn > 0);
  }

  /// Computes log2 of the rows' features plus added(n, e), at places as in PlainSide::values(). Called by all lanes.
  template <class Added>
  __device__ __forceinline__ void logarithms(const Added& added, float (&logs)[8][4]) const {
    if constexpr (projected) {
      rows.project(projection(), logs);
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) logs[n][e] = gpu_fma(logs[n][e], factor, added(n, e));
      }
    } else {
      rows.logarithms(tile(), added, logs);
    }
  }

  /// Raises the scales of features with a row above the margin (at first, of all), and computes the logarithms again:
  /// under a scale far below them they have lost digits.
  __device__ __forceinline__ void raise(float (&logs)[8][4], const float (&offset)[2], const bool (&counts)[2],
                                        bool all) {
    logarithms([&](int, int e) { return offset[e >> 1]; }, logs);
    const float none[2] = {0.0f, 0.0f};
    column_maxima(p, logs, none, none, counts, floats(Layout::maxima) + 4 * own);
    __syncthreads();
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int place = 8 * n + 2 * t + e;
        float most = fused_nothing;
        FURLONG_UNROLL
        for (int warp = 0; warp < fused_warps; ++warp) most = gpu_max(most, floats(Layout::maxima)[64 * warp + place]);
        const float after = all || most - scale[n][e] > plain_states_margin ? ::ceilf(most) : scale[n][e],
                    by = after - scale[n][e];
        scale[n][e] = after;
        logs[n][e] -= scale[n][e], logs[n][2 + e] -= scale[n][e];
        if (own == 0 && g == 0) floats(Layout::moves)[place] = by;
      }
    }
  }

  /// sums += Σ_j weights v; the warp owns features [own, own + 16).
  __device__ __forceinline__ void advance(int turn, bool moves) {
    float added[8][4], extra_added[4] = {}, before[2] = {1.0f, 1.0f};
    clear(added);
    const Tile<1> v = vectors_of(turn);
    FURLONG_UNROLL
    for (int k = 0; k < fused_chunk; k += 16) {
      const OperandA<1> a = weights().a_transposed(k, own);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        OperandB<1> b[2];
        v.b_transposed(k, 8 * n, b);
        multiply(added[n], a, b[0]);
        multiply(added[n + 1], a, b[1]);
      }
      OperandB<Keys ? 1 : 2> column;  // the extra column, in all columns of the product
      FURLONG_UNROLL
      for (int word = 0; word < 2; ++word) {
        const int j = k + 8 * word + 2 * t;
        column.set(word, Keys ? 1.0f : extra()[j], Keys ? 1.0f : extra()[j + 1]);
      }
      multiply(extra_added, a, column);
    }
    if (moves) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) before[half] = exp2_fast(-floats(Layout::moves)[own + g + 8 * half]);
    }
    FURLONG_UNROLL
    for (int e = 0; e < 4; ++e) {
      // Rounded to nearest here, because additions inside a tensor-core product are not.
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) sums[n][e] = gpu_fma(sums[n][e], before[e >> 1], added[n][e]);
      extra_sums[e] = gpu_fma(extra_sums[e], before[e >> 1], extra_added[e]);
    }
  }

  __device__ void write(const FusedStates& states) {
    __syncthreads();  // all warps have read the moves
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (own == 0 && g == 0) floats(Layout::moves)[8 * n + 2 * t + e] = scale[n][e];
      }
    }
    __syncthreads();
    const std::int64_t row = states.at(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x), true) * p.m_padded +
                             tile() * fused_tile + own + g;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      float* target = states.sum + (row + 8 * half) * D + slice() + 2 * t;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n)
        store_vector(target + 8 * n, Vector<float, 2>{{sums[n][2 * half], sums[n][2 * half + 1]}});
      if (slice() == 0 && t == 0) {
        states.extra[row + 8 * half] = extra_sums[2 * half];
        states.maximum[row + 8 * half] = floats(Layout::moves)[own + g + 8 * half];
      }
    }
  }

  // ---- loads from global memory ----

  __device__ __forceinline__ void load_rows(int first) {
    rows.rows.load(plain_rows_of(side.rows, head.batch, Keys ? head.kv_head : head.head, side.n), first + own);
  }
  __device__ __forceinline__ void load_vectors_of(int first, int turn) const {
    plain_load_vectors(plain_rows_of(side.vectors, head.batch, Keys ? head.kv_head : head.head, side.n), first, slice(),
                       vectors_of(turn));
    cp_async_commit();
  }

  // ---- shared memory ----

  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(memory + offset); }
  __device__ __forceinline__ float* extra() const { return floats(Layout::extra); }
  __device__ __forceinline__ Bf16* projection() const {
    return reinterpret_cast<Bf16*>(memory + Layout::random_projection);
  }
  __device__ __forceinline__ Tile<1> weights() const {
    return {reinterpret_cast<Bf16*>(memory + Layout::weights), fused_ld, 0};
  }
  __device__ __forceinline__ Tile<1> vectors_of(int turn) const {
    return {reinterpret_cast<Bf16*>(memory + Layout::vectors + (turn & 1) * Layout::plane), fused_ld, 0};
  }

  __device__ __forceinline__ int tile() const { return static_cast<int>(blockIdx.y) % (p.m_padded / fused_tile); }
  __device__ __forceinline__ int slice() const { return static_cast<int>(blockIdx.y) / (p.m_padded / fused_tile) * 64; }

  const FusedProblem& p;
  const FusedSide& side;
  unsigned char* const memory;
  const FusedHead head;
  const float factor;
  const int lane, g, t, own;
  PlainSide<form, D, Keys> rows;
  float scale[8][2];  // of features 8 n + 2 t + e of the tile
  float sums[8][4], extra_sums[4] = {};
};

/// As fused_local_states. At width 128 entries would leave too few registers for three blocks per multiprocessor. Grid:
/// (segments, tiles · D / 64, batch · n_heads).
template <FusedForm form, int D, bool Keys>
__global__ void __launch_bounds__(fused_threads, form != FusedForm::projection && D == 128 ? 2 : 3)
    fused_plain_states(FusedProblem p, FusedSide side, FusedStates states) {
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  PlainStatesBlock<form, D, Keys>(p, side, memory).run(states);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
