#pragma once
// Shared by the fused kernels of linear attention: features of 64 rows at a time.
//
// A block has four warps and works on chunks of 64 tokens and tiles of 64 features. Warp w owns rows 16 w to 16 w + 15
// of a chunk. What it computes for them (features, sums over keys) stays in its registers in the layout of mma
// accumulators, which only need rounding to become operand A of the next product. A row's maximum is a maximum over
// four lanes. Data that all warps need goes through shared memory.
//
// Two precisions. Exact: queries and keys are bfloat16 as stored, so ω·x is exact in float32 accumulation; other
// operands are rounded to bfloat16 once. Split (Exact = false), for float32 inputs and for bfloat16 inputs that are
// centered or scaled: x has three bfloat16 parts, which represent it fully; other operands have two (2^-17), and
// products of two lower parts are omitted. States are float32 in both, and enter products in two parts.
#include "framework/ops/attention/linear/cuda/fused_rows.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

// ---- features ----

/// Returns the feature at `place` of a tile's 64.
template <bool Projected>
__device__ __forceinline__ int feature_at(int tile, int place) {
  return tile * fused_tile + (Projected ? place : (place & 32) + fused_entry(place & 31));
}

/// Unreachable: a fault in the simulator; on GPUs the compiler may assume it never runs.
__device__ __forceinline__ void not_a_fused_form() {
#ifdef __CUDACC__
  __builtin_unreachable();
#else
  simulator::fault("a feature map that the fused kernels do not support", std::source_location::current());
#endif
}
/// Calls body(integral constant of the form). linear_attention_fused_supports() excludes maps of other forms. `entry`
/// is computed as softmax with zero constants.
template <bool Projected, class Body>
__device__ __forceinline__ void with_fused_form(FusedForm form, const Body& body) {
  using enum FusedForm;
  if constexpr (Projected) {
    if (form == rectified_projection) return body(std::integral_constant<FusedForm, rectified_projection>{});
    if (form == stretched_projection) return body(std::integral_constant<FusedForm, stretched_projection>{});
    if (form != projection) not_a_fused_form();
    body(std::integral_constant<FusedForm, projection>{});
  } else {
    if (form == relu) return body(std::integral_constant<FusedForm, relu>{});
    if (form == elu1) return body(std::integral_constant<FusedForm, elu1>{});
    if (form != softmax && form != entry) not_a_fused_form();
    body(std::integral_constant<FusedForm, softmax>{});
  }
}

/// Returns a log feature (to base 2), or a feature in the form `values`, from u: ω·x or the entry itself, including its
/// sign.
template <FusedForm form>
__device__ __forceinline__ float feature_of(const FusedProblem& p, const FusedHead& head, const RowTerms& row, float u,
                                            int feature) {
  using enum FusedForm;
  float value;
  if constexpr (form == rectified_projection) {
    value = gpu_fma(u < 0 ? 0.0f : u, head.factor, p.kernel_epsilon);  // propagates NaN
  } else if constexpr (form == stretched_projection) {
    value = gpu_fma(u, head.factor * log2_of_e, gpu_fma(head.squares(p)[feature], head.oprf_a * log2_of_e, row.shift));
  } else if constexpr (form == projection) {
    value = gpu_fma(u, head.factor * log2_of_e, row.shift);
  } else if constexpr (form == relu) {
    value = u < 0 ? 0.0f : u;
  } else if constexpr (form == elu1) {
    value = (u > 0 ? log2_fast(1 + u) : u * log2_of_e) + row.shift;
  } else {
    static_assert(form == softmax);
    value = gpu_fma(u, log2_of_e, row.shift - (feature < p.d ? row.log_plus : row.log_minus));
  }
  constexpr bool values = form == rectified_projection || form == relu;
  return feature < p.m ? value : values ? 0.0f : fused_nothing;
}

/// Returns ∂ loss / ∂ u from that of the feature, without the factor of maps with random projections.
template <FusedForm form>
__device__ __forceinline__ float gradient_of_input(const FusedProblem& p, float feature, float row_shift,
                                                   float gradient) {
  if constexpr (form == FusedForm::rectified_projection) return feature <= p.kernel_epsilon ? 0.0f : gradient;
  if constexpr (form == FusedForm::relu) return feature <= 0 ? 0.0f : gradient;
  if constexpr (form == FusedForm::elu1) {
    const float log_feature = feature - row_shift;  // log2(1 + x) if positive
    return log_feature > 0 ? gradient * exp2_fast(-log_feature) : gradient;
  }
  return gradient;
}

/// Computes a tile's features for the lane's rows first + g and first + g + 8: entry [n][e] is for row g + 8 (e / 2)
/// and place 8 n + 2 t + e % 2. `directions`: the tile of ω in shared memory, rows d_padded + 8 apart. Called by all
/// lanes.
template <bool Projected, bool Exact, bool Keys>
__device__ __forceinline__ void features_of_rows(const FusedProblem& p, const FusedHead& head,
                                                 const FusedInputs<Exact, Keys>& inputs, int first, int tile,
                                                 const Bf16* random_projection, const RowTerms (&terms)[2],
                                                 float (&features)[8][4]) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  if constexpr (Projected) {
    constexpr int parts = Exact ? 1 : 3;
    const int ld = p.d_padded + 8;
    const Tile<1> omega{const_cast<Bf16*>(random_projection), ld, 0};
    clear(features);
    FURLONG_ONE_BY_ONE
    for (int column = 0; column < p.d_padded; column += 32) {
      OperandA<parts> a[2];
      inputs.operands(first, column, a);
      FURLONG_UNROLL
      for (int step = 0; step < 2; ++step) {
        FURLONG_UNROLL
        for (int n = 0; n < 8; n += 2) {
          OperandB<1> b[2];
          omega.b(8 * n, column + 16 * step, b);
          multiply(features[n], a[step], b[0]);
          multiply(features[n + 1], a[step], b[1]);
        }
      }
    }
  } else {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      FURLONG_UNROLL
      for (int group = 0; group < 2; ++group) {
        const int feature = tile * fused_tile + 32 * group + 8 * t;
        const bool negative = p.form == FusedForm::softmax && feature >= p.d;
        float x[8];
        inputs.entries(first + g + 8 * half, feature >= p.m ? p.d : negative ? feature - p.d : feature, x);
        FURLONG_UNROLL
        for (int i = 0; i < 8; ++i) features[4 * group + i / 2][2 * half + i % 2] = negative ? -x[i] : x[i];
      }
    }
  }
  // One branch for all features instead of one per feature.
  const auto apply = [&](auto form) {
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int feature = feature_at<Projected>(tile, 8 * n + 2 * t + (e & 1));
        features[n][e] = feature_of<form()>(p, head, terms[e >> 1], features[n][e], feature);
      }
    }
  };
  with_fused_form<Projected>(p.form, apply);
}

/// Computes one feature of one row, slowly. `column`: its place among all m_padded features.
template <bool Projected, bool Exact, bool Keys>
__device__ inline float feature_of_row(const FusedProblem& p, const FusedHead& head,
                                       const FusedInputs<Exact, Keys>& inputs, const RowTerms& terms, int row, int tile,
                                       int place) {
  const int feature = feature_at<Projected>(tile, place);
  float u = 0;
  if constexpr (Projected) {
    float x[8];
    const Bf16* omega = head.random_projection(p) + static_cast<std::int64_t>(feature) * p.d_padded;
    for (int column = 0; column < p.d; column += 8) {
      inputs.entries(row, column, x);
      const Bf16* group = omega + (column & ~31) + 2 * ((column >> 3) & 3);  // entry 8 t + 2 r + e is at 8 r + 2 t + e
      FURLONG_UNROLL
      for (int i = 0; i < 8; ++i) u = gpu_fma(x[i], to_compute(group[8 * (i >> 1) + (i & 1)]), u);
    }
  } else if (feature < p.m) {
    const bool negative = p.form == FusedForm::softmax && feature >= p.d;
    u = inputs.entry(row, negative ? feature - p.d : feature);
    if (negative) u = -u;
  }
  float value = 0;
  with_fused_form<Projected>(p.form, [&](auto form) { value = feature_of<form()>(p, head, terms, u, feature); });
  return value;
}

/// Returns log2 Σ_f 2^(feature of query i + feature of key j), computed directly by the whole warp.
template <bool Projected, bool Exact>
__device__ inline float direct_log_weight(const FusedProblem& p, const FusedHead& head,
                                          const FusedInputs<Exact, false>& queries, const RowTerms& query, int i,
                                          const FusedInputs<Exact, true>& keys, const RowTerms& key, int j) {
  float most = fused_nothing, total = 0;
  for (int f = lane_index(); f < p.m_padded; f += 32) {
    const float a = feature_of_row<Projected>(p, head, queries, query, i, f / fused_tile, f % fused_tile);
    const float b = feature_of_row<Projected>(p, head, keys, key, j, f / fused_tile, f % fused_tile);
    const float raised_to = gpu_max(most, a + b);
    total = total * exp2_fast(most - raised_to) + exp2_fast(a + b - raised_to);
    most = raised_to;
  }
  const float all = warp_max(most);
  total = warp_sum(total * exp2_fast(most - all));
  return all + gpu_log(total) * log2_of_e;
}

/// Returns ⌊log2 x⌋ of a positive normal number, from its exponent bits.
__device__ __forceinline__ float floor_log2(float x) {
  return static_cast<float>(static_cast<int>(__float_as_uint(x) >> 23) - 127);
}

/// Returns 2^shift times the feature; for a log feature 2^(feature + shift). In the form `values` the row logarithm
/// is row_shift.
__device__ __forceinline__ float weighted(const FusedProblem& p, float feature, float row_shift, float shift) {
  const float e = exp2_fast((p.values ? row_shift : feature) + shift);
  return p.values ? feature * e : e;
}
/// Returns the part of its logarithm that maxima are taken over.
__device__ __forceinline__ float log_size(const FusedProblem& p, float feature, float row_shift) {
  return p.values ? row_shift : feature;
}

/// Computes, for each column, the maximum over the warp's 16 rows plus the row's `shift`, into target[64]. In each step
/// the lanes exchange half of their columns; the lane that ends up with a column writes it.
__device__ __forceinline__ void column_maxima(const FusedProblem& p, const float (&features)[8][4],
                                              const float (&row_shift)[2], const float (&shift)[2],
                                              const bool (&counts)[2], float* target) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  float most[16];
  FURLONG_UNROLL
  for (int n = 0; n < 8; ++n) {
    FURLONG_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float first = counts[0] ? log_size(p, features[n][e], row_shift[0]) + shift[0] : fused_nothing;
      const float second = counts[1] ? log_size(p, features[n][2 + e], row_shift[1]) + shift[1] : fused_nothing;
      most[2 * n + e] = gpu_max(first, second);
    }
  }
  const bool high_16 = lane & 16, high_8 = lane & 8, high_4 = lane & 4;
  float eight[8], four[4], two[2];
  FURLONG_UNROLL
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(full_warp, high_16 ? most[i] : most[8 + i], 16);
    eight[i] = gpu_max(high_16 ? most[8 + i] : most[i], other);
  }
  FURLONG_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float other = __shfl_xor_sync(full_warp, high_8 ? eight[i] : eight[4 + i], 8);
    four[i] = gpu_max(high_8 ? eight[4 + i] : eight[i], other);
  }
  FURLONG_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float other = __shfl_xor_sync(full_warp, high_4 ? four[i] : four[2 + i], 4);
    two[i] = gpu_max(high_4 ? four[2 + i] : four[i], other);
  }
  // Lane 16 a + 8 b + 4 c holds the pair of columns in block n = 4 a + 2 b + c, which equals g.
  target[8 * g + 2 * t] = two[0];
  target[8 * g + 2 * t + 1] = two[1];
}

// ---- loads of tiles from global memory ----

/// Starts to copy the tile of the random projection to shared memory, rows d_padded + 8 apart. The caller commits and
/// waits.
__device__ inline void load_directions(const FusedProblem& p, const FusedHead& head, int tile, Bf16* target) {
  const int vectors = p.d_padded / 8, ld = p.d_padded + 8;
  const Bf16* source = head.random_projection(p) + static_cast<std::int64_t>(tile) * fused_tile * p.d_padded;
  for (int i = static_cast<int>(threadIdx.x); i < fused_tile * vectors; i += fused_threads) {
    const int row = i / vectors, column = i % vectors * 8;
    cp_async16(target + row * ld + column, source + row * p.d_padded + column);
  }
}

/// Loads rows [first, first + 64) and columns [column, column + width) of v or g; zeros outside [from, until) and for
/// missing rows of `inputs`. Exact only starts copies of whole vectors; the caller commits and waits.
template <bool Exact, bool Keys>
__device__ inline void load_vectors(const FusedHeadRows& rows, const FusedInputs<Exact, Keys>& inputs, int first,
                                    int from, int until, int column, int width, const Tile<Exact ? 1 : 2>& target) {
  const int vectors = width / 8;
  for (int i = static_cast<int>(threadIdx.x); i < fused_chunk * vectors; i += fused_threads) {
    const int row = i / vectors, at = i % vectors * 8;
    const bool exists = first + row >= from && first + row < until && inputs.exists(first + row);
    if constexpr (Exact) {
      if (rows.vectors) {
        const Bf16* source = static_cast<const Bf16*>(rows.data);
        cp_async16(target.data + row * target.ld + at,
                   exists ? source + (first + row) * rows.row_stride + (column + at) : source, exists ? 16 : 0);
        continue;
      }
    }
    float x[8];
    FURLONG_UNROLL
    for (int e = 0; e < 8; ++e) x[e] = 0.0f;
    if (exists) read_entries(rows, first + row, column + at, x);
    FURLONG_UNROLL
    for (int e = 0; e < 8; e += 2) target.put(row, at + e, x[e], x[e + 1]);
  }
}

/// Adds 0 · x of both bfloat16 numbers of a word to two sums, which become NaN if x is not finite and else stay zero.
__device__ __forceinline__ void add_zero_times(std::uint32_t word, std::uint32_t& sums) {
#ifdef __CUDACC__
  __nv_bfloat162 x, y;
  memcpy(&x, &word, 4), memcpy(&y, &sums, 4);
  y = __hfma2(x, __float2bfloat162_rn(0.0f), y);
  memcpy(&sums, &y, 4);
#else
  sums = pack_bf16(low_bf16(sums) + 0.0f * low_bf16(word), high_bf16(sums) + 0.0f * high_bf16(word));
#endif
}

/// Sets values that are not finite to zero in `width` columns of a chunk, because 0 · NaN must not reach earlier
/// queries; bad[column] records their keys, one bit per key. Returns whether there are any. Ends with a barrier.
template <int Parts>
__device__ __forceinline__ bool take_out_bad_values(const Tile<Parts>& tile, int width, std::uint64_t* bad) {
  const int vectors = width / 8, count = fused_chunk * vectors;
  std::uint32_t sums[2] = {0, 0};
  FURLONG_UNROLL
  for (int from = 0; from < count; from += fused_threads) {
    const int at = from + static_cast<int>(threadIdx.x);
    if (count % fused_threads != 0 && at >= count) break;
    const auto words =
        load_vector<4>(reinterpret_cast<const std::uint32_t*>(tile.data + at / vectors * tile.ld + at % vectors * 8));
    FURLONG_UNROLL
    for (int word = 0; word < 4; ++word) add_zero_times(words[word], sums[word & 1]);
  }
  if (!__syncthreads_or(((sums[0] | sums[1]) & 0x7fff7fffu) != 0)) return false;
  for (int column = static_cast<int>(threadIdx.x); column < width; column += fused_threads) {
    std::uint64_t rows = 0;
    FURLONG_ONE_BY_ONE
    for (int j = 0; j < fused_chunk; ++j) {
      Bf16* entry = tile.data + j * tile.ld + column;
      if (gpu_is_finite(to_compute(*entry))) continue;
      rows |= std::uint64_t{1} << j;
      for (int part = 0; part < Parts; ++part) entry[part * tile.plane] = from_compute<Bf16>(0.0f);
    }
    bad[column] = rows;
  }
  __syncthreads();
  return true;
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
