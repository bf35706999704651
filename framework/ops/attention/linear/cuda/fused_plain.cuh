#pragma once
// Rows and features of the plain case of linear attention, which has its own kernels: bfloat16 as stored, causal, no
// masks, documents, centering or scaling, d = d_value = 64 or 128. The feature map and the width are compile-time
// constants, and queries and keys of a chunk are read once.
//
// A feature takes one exponential. With elu1 and softmax it is the feature's value itself. With projections it is
// 2^(feature - s), where the row's scale s is an integer near the row's largest feature. Sums over features or over
// keys move to another scale by multiplication with a power of two, which is exact. So no row depends on the scales of
// others. A scale is the ceiling of the maximum over the row's first tile, and is raised if a later feature is more
// than 2^24 above it. Features more than 2^126 below their row's scale are zero.
//
// So the scales of a row and of a sum must not be far above the row's result, or what they have lost may be most of it:
// the row is then left to the general kernel, which has a maximum for each feature of the sum.
#include "framework/ops/attention/linear/cuda/fused_states.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr float plain_margin = 24;  // of log2 features above their row's scale
// A row is left to the general kernel if its scale and that of the sum are further above its result, as log2. Below it,
// features that are zero take less than 2^(64 - 126 + plain_margin) = 2^-38 of the row for each key and feature.
inline constexpr float plain_most_exponent = 64, plain_least_denominator = 0x1p-64f;

/// Returns x. The compiler does not know that, so it does not move what follows from x out of a loop, which would keep
/// addresses in registers.
__device__ __forceinline__ int opaque(int x) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(x));
#endif
  return x;
}
/// Returns the rows of one head of one sequence, which are bfloat16.
__device__ __forceinline__ FusedHeadRows plain_rows_of(const FusedRows& rows, int batch, int head, int n) {
  return {static_cast<const Bf16*>(rows.data) + opaque(batch) * rows.batch_stride + opaque(head) * rows.head_stride,
          rows.row_stride, n, true, true};
}

/// The warp's 16 rows of queries or keys as stored, as operands A of entries [32 group + 16 step, + 16).
template <int D>
struct PlainRows {
  OperandA<1> operands[D / 32][2];  // [group][step]

  /// Returns the word with entries 32 group + 8 t + 2 i and the next of row g + 8 half.
  __device__ __forceinline__ std::uint32_t& word(int group, int half, int i) {
    return operands[group][i >> 1].parts[0][2 * (i & 1) + half];
  }
  __device__ __forceinline__ std::uint32_t word(int group, int half, int i) const {
    return operands[group][i >> 1].parts[0][2 * (i & 1) + half];
  }
  /// Loads rows from `first` on, zeros past the end.
  __device__ __forceinline__ void load(const FusedHeadRows& rows, int first) {
    const int lane = lane_index(), g = lane >> 2, t = lane & 3;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + g + 8 * half;
      const bool exists = row < rows.n;
      const auto* source = reinterpret_cast<const std::uint32_t*>(
          static_cast<const Bf16*>(rows.data) + (exists ? row : rows.n - 1) * rows.row_stride + 8 * t);
      FURLONG_UNROLL
      for (int group = 0; group < D / 32; ++group) {
        const auto four = load_vector<4>(source + 16 * group);
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) word(group, half, i) = exists ? four[i] : 0u;
      }
    }
  }
  /// Returns the word that becomes features 8 (4 group + i) + 2 t and the next of a tile of entries.
  __device__ __forceinline__ std::uint32_t word_of_tile(int tile, int group, int half, int i) const {
    if constexpr (D == 64) return word(group, half, i);
    return tile & 1 ? word(D / 64 + group, half, i) : word(group, half, i);
  }
  /// Calls body(half, entry) for all entries of the lane.
  template <class Body>
  __device__ __forceinline__ void each(const Body& body) const {
    FURLONG_UNROLL
    for (int group = 0; group < D / 32; ++group) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i)
          body(half, low_bf16(word(group, half, i))), body(half, high_bf16(word(group, half, i)));
      }
    }
  }
};

/// Returns elu1 of both numbers of a word, rounded to bfloat16. Because eˣ ≥ 1 + x, it is the larger of 1 + x and
/// min(eˣ, 1). NaN stays NaN.
__device__ __forceinline__ std::uint32_t elu1_words(std::uint32_t word) {
  const float low = low_bf16(word), high = high_bf16(word);
#ifdef __CUDACC__
  const std::uint32_t power_words = pack_bf16(exp2_fast(low * log2_of_e), exp2_fast(high * log2_of_e));
  __nv_bfloat162 x, powers;
  memcpy(&x, &word, 4), memcpy(&powers, &power_words, 4);
  const __nv_bfloat162 one = __float2bfloat162_rn(1.0f);
  x = __hmax2_nan(__hadd2(x, one), __hmin2_nan(powers, one));
  memcpy(&word, &x, 4);
  return word;
#else
  return pack_bf16(low > 0 ? 1 + low : exp2_fast(low * log2_of_e), high > 0 ? 1 + high : exp2_fast(high * log2_of_e));
#endif
}

/// The warp's 16 rows of one side, their terms and their scales.
template <FusedForm form, int D, bool Keys>
struct PlainSide {
  static constexpr bool projected = form == FusedForm::projection;

  PlainRows<D> rows;
  // Of rows g and g + 8, to base 2. projection: plus is -|k'|²/2 of keys. softmax: logarithms of both sums.
  float plus[2], minus[2];
  float scale[2];  // projection: s

  /// Computes the terms of the rows. Called by all lanes.
  __device__ __forceinline__ void prepare(const FusedProblem& p) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      plus[half] = minus[half] = 0;
      scale[half] = fused_nothing;
    }
    if constexpr (projected && Keys) {
      rows.each([&](int half, float x) { plus[half] = gpu_fma(x, x, plus[half]); });
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) plus[half] = quad_sum(plus[half]) * (p.scale * p.scale * -0.5f * log2_of_e);
    }
    if constexpr (form == FusedForm::softmax) {
      float most[2] = {fused_nothing, fused_nothing}, least[2] = {-fused_nothing, -fused_nothing};
      rows.each([&](int half, float x) { most[half] = gpu_max(most[half], x), least[half] = gpu_min(least[half], x); });
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half)
        most[half] = quad_max(most[half]) * log2_of_e, least[half] = -quad_max(-least[half]) * log2_of_e;
      rows.each([&](int half, float x) {
        plus[half] += exp2_fast(gpu_fma(x, log2_of_e, -most[half]));
        minus[half] += exp2_fast(gpu_fma(x, -log2_of_e, least[half]));
      });
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        plus[half] = most[half] + log2_fast(quad_sum(plus[half]));
        minus[half] = log2_fast(quad_sum(minus[half])) - least[half];
      }
    }
  }

  /// Returns the features at places 8 n + 2 t and the next of row g + 8 half, rounded to bfloat16, of the form elu1 or
  /// softmax.
  __device__ __forceinline__ std::uint32_t rounded_values(int tile, int half, int n) const {
    const std::uint32_t word = rows.word_of_tile(tile, n / 4, half, n % 4);
    if constexpr (form == FusedForm::elu1) {
      return elu1_words(word);
    } else {
      const bool negative = tile >= D / fused_tile;
      const float sign = negative ? -log2_of_e : log2_of_e, term = negative ? minus[half] : plus[half];
      const auto feature = [&](float x) { return exp2_fast(gpu_fma(x, sign, -term)); };
      return pack_bf16(feature(low_bf16(word)), feature(high_bf16(word)));
    }
  }
  /// Calls body(n, e, x, sign, term) for the entries x of a tile, in the forms elu1 and softmax: accumulator [n][e] is
  /// for row g + 8 (e / 2) and place 8 n + 2 t + e % 2. softmax: log2 of the feature is sign x - term.
  template <class Body>
  __device__ __forceinline__ void each_of_tile(int tile, const Body& body) const {
    const bool negative = tile >= D / fused_tile;
    const float sign = negative ? -log2_of_e : log2_of_e;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float term = negative ? minus[half] : plus[half];
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        const std::uint32_t word = rows.word_of_tile(tile, n / 4, half, n % 4);
        body(n, 2 * half, low_bf16(word), sign, term);
        body(n, 2 * half + 1, high_bf16(word), sign, term);
      }
    }
  }
  /// Computes the features of a tile in float32.
  __device__ __forceinline__ void values(int tile, float (&features)[8][4]) const {
    each_of_tile(tile, [&](int n, int e, float x, float sign, float term) {
      if constexpr (form == FusedForm::elu1) {
        features[n][e] = x > 0 ? 1 + x : exp2_fast(x * log2_of_e);
      } else {
        features[n][e] = exp2_fast(gpu_fma(x, sign, -term));
      }
    });
  }
  /// Computes log2 of a tile's features plus added(n, e).
  template <class Added>
  __device__ __forceinline__ void logarithms(int tile, const Added& added, float (&logs)[8][4]) const {
    each_of_tile(tile, [&](int n, int e, float x, float sign, float term) {
      if constexpr (form == FusedForm::elu1) {
        logs[n][e] = x > 0 ? log2_fast(1 + x) + added(n, e) : gpu_fma(x, log2_of_e, added(n, e));
      } else {
        logs[n][e] = gpu_fma(x, sign, -term) + added(n, e);
      }
    });
  }
  /// Computes ω·x for a tile of ω in shared memory, rows D + 8 apart. Called by all lanes.
  __device__ __forceinline__ void project(const Bf16* omega, float (&features)[8][4]) const {
    const Tile<1> w{const_cast<Bf16*>(omega), D + 8, 0};
    clear(features);
    FURLONG_UNROLL
    for (int group = 0; group < D / 32; ++group) {
      FURLONG_UNROLL
      for (int step = 0; step < 2; ++step) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; n += 2) {
          OperandB<1> b[2];
          w.b(8 * n, 32 * group + 16 * step, b);
          multiply(features[n], rows.operands[group][step], b[0]);
          multiply(features[n + 1], rows.operands[group][step], b[1]);
        }
      }
    }
  }
  /// Raises the scales of rows with a feature above the margin. Returns whether there is any in the warp, and the
  /// factors that move earlier numbers of the rows to their new scale.
  __device__ __forceinline__ bool raise(const float (&projections)[8][4], float factor, float (&moves)[2]) {
    float most[2];
    bool above = false;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      most[half] = projections[0][2 * half];
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n)
        most[half] = gpu_max(most[half], gpu_max(projections[n][2 * half], projections[n][2 * half + 1]));
      moves[half] = 1;
      above = above || gpu_fma(most[half], factor, plus[half] - scale[half]) > plain_margin;
    }
    if (!__any_sync(full_warp, above)) return false;
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float of_row = quad_max(most[half]);
      if (!(gpu_fma(of_row, factor, plus[half] - scale[half]) > plain_margin)) continue;
      const float raised = ::ceilf(gpu_fma(of_row, factor, plus[half]));
      moves[half] = exp2_fast(scale[half] - raised);
      scale[half] = raised;
    }
    return true;
  }
  /// Replaces ω·x by features under the rows' scales.
  __device__ __forceinline__ void exponentiate(float factor, float (&features)[8][4]) const {
    const float offset[2] = {plus[0] - scale[0], plus[1] - scale[1]};
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) features[n][e] = exp2_fast(gpu_fma(features[n][e], factor, offset[e >> 1]));
    }
  }
};

/// Multiplies both bfloat16 numbers of a word by those of another.
__device__ __forceinline__ std::uint32_t multiply_words(std::uint32_t x, std::uint32_t y) {
#ifdef __CUDACC__
  __nv_bfloat162 a, b;
  memcpy(&a, &x, 4), memcpy(&b, &y, 4);
  a = __hmul2(a, b);
  memcpy(&x, &a, 4);
  return x;
#else
  return pack_bf16(low_bf16(x) * low_bf16(y), high_bf16(x) * high_bf16(y));
#endif
}

// ---- loads from global memory: they start copies, the caller commits and waits ----

/// Copies 64 rows of v or g from `first` on and 64 columns from `column` on; zeros past the end.
__device__ __forceinline__ void plain_load_vectors(const FusedHeadRows& rows, int first, int column,
                                                   const Tile<1>& target) {
  const int thread = opaque(static_cast<int>(threadIdx.x));
  FURLONG_UNROLL
  for (int i = 0; i < fused_chunk * 8 / fused_threads; ++i) {
    const int at = thread + i * fused_threads, row = at / 8, own = at % 8 * 8;
    const bool exists = first + row < rows.n;
    const Bf16* source = static_cast<const Bf16*>(rows.data);
    cp_async16(target.data + row * target.ld + own,
               exists ? source + (first + row) * rows.row_stride + column + own : source, exists ? 16 : 0);
  }
}
/// Copies a tile of ω, rows D + 8 apart.
template <int D>
__device__ __forceinline__ void plain_load_projection(const FusedProblem& p, const FusedHead& head, int tile,
                                                      Bf16* target) {
  constexpr int vectors = D / 8;
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const Bf16* source = head.random_projection(p) + tile * (fused_tile * D);
  FURLONG_UNROLL
  for (int i = 0; i < fused_tile * vectors / fused_threads; ++i) {
    const int at = thread + i * fused_threads, row = at / vectors, column = at % vectors * 8;
    cp_async16(target + row * (D + 8) + column, source + row * D + column);
  }
}

// ---- shared memory ----

// A tile of the sum has one row of 64 features per column of v, and one for the normalizer. Of 16 features the four
// that a lane multiplies are neighbors: places 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 are at 4 t to 4 t + 3. In odd rows
// neighboring groups of 16 are exchanged, so that two rows are in different banks.
inline constexpr int plain_sum_rows = 65, plain_sum_tile = plain_sum_rows * fused_tile;

/// Shared memory of fused_plain_outputs, in bytes from its start. `sum` has `tiles` tiles.
template <FusedForm form, int D>
struct PlainOutputsLayout {
  static constexpr bool projected = form == FusedForm::projection;
  static constexpr int plane = fused_chunk * fused_ld * 2, omega_tile = fused_tile * (D + 8) * 2;
  static constexpr int most_tiles = 8;
  static constexpr int key_scale = 0, key_move = 256, key_shift = 512;  // float [64]
  static constexpr int token_scale = 768;                               // bfloat16 [64]
  static constexpr int tile_scale = 896;                                // float [4 warps, 8 tiles]
  static constexpr int bad = 1024;                                      // 64 bits for each column
  static constexpr int normal = 1536, vectors = normal + plane;         // one tile; two tiles
  static constexpr int random_projection = vectors + 2 * plane;         // two tiles
  static constexpr int sum = random_projection + (projected ? 2 * omega_tile : 0);
  static constexpr std::size_t bytes(int tiles) { return static_cast<std::size_t>(sum + tiles * plain_sum_tile * 4); }
};

/// Returns where the four numbers of lane t in a group of 16 features are.
__device__ __forceinline__ int plain_sum_at(int row, int group, int t) {
  return row * fused_tile + 16 * (group ^ (row & 1)) + 4 * t;
}
/// Returns where the feature at `place` of the tile is.
__device__ __forceinline__ int plain_sum_place(int row, int place) {
  return plain_sum_at(row, place >> 4, (place & 7) >> 1) + 2 * ((place >> 3) & 1) + (place & 1);
}

/// sums += features · S over the tile, and denominators in all columns. TF32: S is read as it is stored.
__device__ __forceinline__ void plain_multiply_sum(const float (&features)[8][4], const float* sum_tile,
                                                   float (&sums)[8][4], float (&denominators)[4]) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  FURLONG_UNROLL
  for (int group = 0; group < 4; ++group) {
    std::uint32_t a[2][4];
    FURLONG_UNROLL
    for (int step = 0; step < 2; ++step) {
      const float(&f)[4] = features[2 * group + step];
      a[step][0] = __float_as_uint(f[0]), a[step][1] = __float_as_uint(f[2]);
      a[step][2] = __float_as_uint(f[1]), a[step][3] = __float_as_uint(f[3]);
    }
    FURLONG_UNROLL
    for (int from = 0; from < 9; from += 3) {  // blocks of 8 columns; the ninth is the normalizer
      Vector<std::uint32_t, 4> b[3];
      FURLONG_UNROLL
      for (int n = 0; n < 3; ++n) {
        const int at =
            from + n < 8 ? 8 * (from + n) * fused_tile + plain_sum_at(g, group, t) : plain_sum_at(64, group, t);
        b[n] = load_vector<4>(reinterpret_cast<const std::uint32_t*>(sum_tile + at));
      }
      FURLONG_UNROLL
      for (int step = 0; step < 2; ++step) {
        FURLONG_UNROLL
        for (int n = 0; n < 3; ++n) {
          const std::uint32_t words[2] = {b[n][2 * step], b[n][2 * step + 1]};
          mma_m16n8k8(from + n < 8 ? sums[from + n] : denominators, a[step], words);
        }
      }
    }
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
