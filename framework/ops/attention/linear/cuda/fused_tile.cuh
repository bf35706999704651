#pragma once
// What the kernels of the fused form of linear attention share: what they are told, rows of queries and keys, features
// of 64 rows at a time.
//
// A block has four warps and works on chunks of 64 tokens and tiles of 64 features. Warp w owns rows 16 w to 16 w + 15
// of a chunk, so that what it computes for them (features, sums over keys) stays in its registers, in the layout of
// mma's accumulators, from which operand A of the next product is only a rounding away; a row's maximum is one over
// four lanes. Whatever all warps need goes through shared memory.
//
// Two precisions. Exact: queries and keys are bfloat16 as they are stored, so that ω·x is exact in float32
// accumulation, and other operands are rounded to bfloat16 once. Split (Exact = false): float32 inputs, and bfloat16
// ones that centring or scaling moves; x has three bfloat16 parts, which hold all of it, other operands have two
// (2^-17), and products of two lower parts are left out. States are float32 either way, and enter products in two
// parts.
#include "framework/ops/attention/linear/cuda/fused_operands.cuh"
// After kernel.h, which has to come before fmt.
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr float fused_nothing =
    -1e30f;  // the logarithm of nothing: finite, so that a difference of two such is not NaN
inline constexpr float fused_least_product = 1e-30f;  // below it a pair is summed again directly (docs/numerics.md)

/// Rows of all heads of all sequences; strides in elements.
struct FusedRows {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool is_bfloat16 = false;
  bool vectors = false;  // every 8 entries can be read by 16-byte accesses
};

/// Queries with what flows back to them, or keys with their values: what is summed over, or what is multiplied with the
/// sum.
struct FusedSide {
  FusedRows rows, vectors;  // x [.., d]; g or v [.., width]
  int n = 0;
  // [batch, n_heads, n] of queries in backward: the stabiliser, 1 / denominator and g·output. Null: 0, 1 and none.
  const float *top = nullptr, *inverse = nullptr, *delta = nullptr;
};

/// What every kernel is told about the op.
struct FusedProblem {
  FusedForm form = FusedForm::none;  // of the feature map
  bool values = false;               // features are numbers, not logarithms
  bool causal = false;
  int batch = 0, n_heads = 0, group = 1;  // query heads to a key-value head
  int d = 0, d_padded = 0, d_value = 0, m = 0, m_padded = 0;
  float scale = 1, kernel_epsilon = 0;
  const Bf16* directions =
      nullptr;  // [sets, m_padded, d_padded], columns in the order of products, ω and where a map has it -ω
  const float* squares = nullptr;  // [sets, m_padded]: |ω|²
  bool directions_per_head = false;
  const float *oprf_a = nullptr, *query_center = nullptr, *key_center = nullptr, *scaling = nullptr;
  const std::int32_t* kept = nullptr;       // [batch, n_key]; null: all
  const std::int32_t* run_start = nullptr;  // [batch, n]: where each token's document begins; null: one document
  int segments = 1, segment_chunks = 1;     // along the sequence
};

/// Sums over the tokens before (or, of gradients, behind) each segment: sum [batch · n_heads, segments, m_padded,
/// d_value], the others [batch · n_heads, segments, m_padded]. Features in the order of products.
struct FusedStates {
  float *sum = nullptr, *extra = nullptr, *maximum = nullptr;
  int segments = 1;
  /// Where a segment's begins; not causal: the head's one.
  __device__ std::int64_t at(int head, int segment, bool causal) const {
    return static_cast<std::int64_t>(head) * segments + (causal ? segment : 0);
  }
};

/// The head that a block works on. What can be found from the kernel's arguments is found where it is used: registers
/// are few.
struct FusedHead {
  int batch, head, kv_head;
  float factor;  // of ω·x
  float oprf_a;

  __device__ __forceinline__ const Bf16* directions(const FusedProblem& p) const {
    return p.directions + static_cast<std::int64_t>(p.directions_per_head ? head * p.m_padded : 0) * p.d_padded;
  }
  __device__ __forceinline__ const float* squares(const FusedProblem& p) const {
    return p.squares + (p.directions_per_head ? head * p.m_padded : 0);
  }
  /// Of tokens of this sequence; null where all are one document.
  __device__ __forceinline__ const std::int32_t* run_start(const FusedProblem& p, int n) const {
    return p.run_start ? p.run_start + static_cast<std::int64_t>(batch) * n : nullptr;
  }
};
__device__ inline FusedHead fused_head(const FusedProblem& p, int index) {
  FusedHead h;
  h.batch = index / p.n_heads, h.head = index % p.n_heads, h.kv_head = h.head / p.group;
  h.oprf_a = p.oprf_a ? p.oprf_a[h.head] : 0.0f;
  h.factor = p.form == FusedForm::stretched_projection ? p.scale * gpu_sqrt(1 - 4 * h.oprf_a) : p.scale;
  return h;
}

// ---- rows of queries and keys ----

/// Where the rows of one head of one sequence begin, and which of them exist.
struct FusedHeadRows {
  const void* data;
  std::int64_t row_stride;
  int n;
  bool is_bfloat16, vectors;
};
__device__ inline FusedHeadRows fused_rows_of(const FusedRows& rows, int batch, int head, int n) {
  const std::int64_t at = batch * rows.batch_stride + head * rows.head_stride;
  const void* data = rows.is_bfloat16 ? static_cast<const void*>(static_cast<const Bf16*>(rows.data) + at)
                                      : static_cast<const void*>(static_cast<const float*>(rows.data) + at);
  return {data, rows.row_stride, n, rows.is_bfloat16, rows.vectors};
}

/// Eight neighbouring entries of a bfloat16 row in four words.
__device__ __forceinline__ void read_words(const FusedHeadRows& rows, int row, int column, std::uint32_t (&words)[4]) {
  const Bf16* at = static_cast<const Bf16*>(rows.data) + row * rows.row_stride + column;
  if (rows.vectors) {
    const auto all = load_vector<4>(reinterpret_cast<const std::uint32_t*>(at));
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = all[i];
    return;
  }
  FURLONG_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = pack_bf16(to_compute(at[2 * i]), to_compute(at[2 * i + 1]));
}
/// Eight neighbouring entries of a row of either type.
__device__ __forceinline__ void read_entries(const FusedHeadRows& rows, int row, int column, float (&entries)[8]) {
  if (rows.is_bfloat16) {
    std::uint32_t words[4];
    read_words(rows, row, column, words);
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) entries[2 * i] = low_bf16(words[i]), entries[2 * i + 1] = high_bf16(words[i]);
    return;
  }
  const float* at = static_cast<const float*>(rows.data) + row * rows.row_stride + column;
  if (rows.vectors) {
    FURLONG_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto four = load_vector<4>(at + 4 * i);
      FURLONG_UNROLL
      for (int j = 0; j < 4; ++j) entries[4 * i + j] = four[j];
    }
    return;
  }
  FURLONG_UNROLL
  for (int i = 0; i < 8; ++i) entries[i] = at[i];
}

/// The inputs of one side of one head, as the map sees them: centred, scaled, zeros where there is none (past the end,
/// masked, column >= d).
template <bool Exact, bool Keys>
struct FusedInputs {
  const FusedProblem& p;
  const FusedSide& side;
  const void* data;
  int batch, head;  // the query head, whose constants these are

  __device__ FusedInputs(const FusedProblem& problem, const FusedHead& own, const FusedSide& of)
      : p(problem),
        side(of),
        data(fused_rows_of(of.rows, own.batch, Keys ? own.kv_head : own.head, of.n).data),
        batch(own.batch),
        head(own.head) {}

  __device__ __forceinline__ FusedHeadRows rows() const {
    return {data, side.rows.row_stride, side.n, side.rows.is_bfloat16, side.rows.vectors};
  }
  __device__ __forceinline__ bool exists(int row) const {
    if constexpr (Keys)
      return row < side.n && !(p.kept && p.kept[static_cast<std::int64_t>(batch) * side.n + row] == 0);
    return row < side.n;
  }
  /// Entries [column, column + n) centred and scaled.
  template <int N>
  __device__ __forceinline__ void transform(int column, float (&x)[N]) const {
    if constexpr (Exact) return;
    const float* center = Keys ? p.key_center : p.query_center;
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) {
      if (center) x[i] -= center[head * p.d + column + i];
      if (p.scaling)
        x[i] = Keys ? x[i] / p.scaling[head * p.d + column + i] : x[i] * p.scaling[head * p.d + column + i];
    }
  }
  __device__ __forceinline__ void entries(int row, int column, float (&x)[8]) const {
    FURLONG_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = 0.0f;
    if (column >= p.d || !exists(row)) return;
    read_entries(rows(), row, column, x);
    transform(column, x);
  }
  __device__ __forceinline__ float entry(int row, int column) const {
    if (!exists(row)) return 0.0f;
    const std::int64_t at = row * side.rows.row_stride + column;
    float x[1] = {side.rows.is_bfloat16 ? to_compute(static_cast<const Bf16*>(data)[at])
                                        : static_cast<const float*>(data)[at]};
    transform(column, x);
    return x[0];
  }
  __device__ __forceinline__ void words(int row, int column, std::uint32_t (&x)[4]) const {
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = 0u;
    if (column < p.d && exists(row)) read_words(rows(), row, column, x);
  }
  /// Of this lane's rows first + g and first + g + 8, entries [column, column + 32) as two operands.
  template <int Parts>
  __device__ __forceinline__ void operands(int first, int column, OperandA<Parts> (&a)[2]) const {
    const int lane = lane_index(), g = lane >> 2, at = column + 8 * (lane & 3);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (Exact) {
        static_assert(Parts == 1);
        std::uint32_t x[4];
        words(first + g + 8 * half, at, x);
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) a[i >> 1].parts[0][(i & 1) * 2 + half] = x[i];
      } else {
        float x[8];
        entries(first + g + 8 * half, at, x);
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) a[i >> 1].set((i & 1) * 2 + half, x[2 * i], x[2 * i + 1]);
      }
    }
  }
};
/// Whether log features of keys end in -|k'|²/2.
__device__ __forceinline__ bool shifts_keys(FusedForm form) {
  return form == FusedForm::projection || form == FusedForm::stretched_projection;
}
/// What a row adds to all of its log features (or to its logarithm in the form `values`): keys -|k'|²/2 where the map
/// has it, centring's and the mask's weight; and what softmax takes out, for either sign.
struct RowTerms {
  float shift, log_plus, log_minus;
};
/// Of the lane's rows first + g and first + g + 8. All lanes come.
template <bool Projected, bool Exact, bool Keys>
__device__ inline void row_terms(const FusedProblem& p, const FusedInputs<Exact, Keys>& inputs, int first,
                                 RowTerms (&terms)[2]) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  const bool squares = Projected && Keys && shifts_keys(p.form);
  FURLONG_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first + g + 8 * half;
    float square = 0, weight = 0, x[8];
    terms[half] = {0.0f, 0.0f, 0.0f};
    if (squares || (!Exact && Keys && p.query_center)) {
      for (int column = 8 * t; column < p.d; column += 32) {
        inputs.entries(row, column, x);
        FURLONG_UNROLL
        for (int i = 0; i < 8; ++i) {
          square = gpu_fma(x[i], x[i], square);
          if (!Exact && p.query_center) {
            const int at = inputs.head * p.d + column + i;
            weight = gpu_fma(p.query_center[at], p.scaling ? x[i] * p.scaling[at] : x[i], weight);
          }
        }
      }
      const float scale = p.scale * p.scale;
      terms[half].shift = quad_sum(weight) * scale - (squares ? quad_sum(square) * scale / 2 : 0.0f);
    }
    if (!Projected && p.form == FusedForm::softmax) {
      float largest = fused_nothing, least = -fused_nothing, plus = 0, minus = 0;
      for (int column = 8 * t; column < p.d; column += 32) {
        inputs.entries(row, column, x);
        FURLONG_UNROLL
        for (int i = 0; i < 8; ++i) largest = gpu_max(largest, x[i]), least = gpu_min(least, x[i]);
      }
      largest = quad_max(largest), least = -quad_max(-least);
      for (int column = 8 * t; column < p.d; column += 32) {
        inputs.entries(row, column, x);
        FURLONG_UNROLL
        for (int i = 0; i < 8; ++i) plus += gpu_exp_fast(x[i] - largest), minus += gpu_exp_fast(least - x[i]);
      }
      terms[half].log_plus = largest + gpu_log(quad_sum(plus));
      terms[half].log_minus = gpu_log(quad_sum(minus)) - least;
    }
    if (Keys && !inputs.exists(row)) terms[half].shift = fused_nothing;
  }
}

// ---- features ----

/// The feature that stands at `place` of a tile's 64.
template <bool Projected>
__device__ __forceinline__ int feature_at(int tile, int place) {
  return tile * fused_tile + (Projected ? place : (place & 32) + fused_entry(place & 31));
}

/// No thread comes here: a fault on the simulator, and what the compiler may assume on GPUs.
__device__ __forceinline__ void not_a_fused_form() {
#ifdef __CUDACC__
  __builtin_unreachable();
#else
  simulator::fault("a feature map that the fused form does not have", std::source_location::current());
#endif
}
/// Calls body(integral constant of the form). linear_attention_fused_supports refuses maps of any other form. entry is
/// softmax but for its constants, which are zero.
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

/// A log feature, or a feature in the form `values`, from u: ω·x or the entry itself, its sign included.
template <FusedForm form>
__device__ __forceinline__ float feature_of(const FusedProblem& p, const FusedHead& head, const RowTerms& row, float u,
                                            int feature) {
  using enum FusedForm;
  float value;
  if constexpr (form == rectified_projection) {
    value = gpu_fma(u < 0 ? 0.0f : u, head.factor, p.kernel_epsilon);  // a NaN stays one
  } else if constexpr (form == stretched_projection) {
    value = gpu_fma(u, head.factor, gpu_fma(head.squares(p)[feature], head.oprf_a, row.shift));
  } else if constexpr (form == projection) {
    value = gpu_fma(u, head.factor, row.shift);
  } else if constexpr (form == relu) {
    value = u < 0 ? 0.0f : u;
  } else if constexpr (form == elu1) {
    value = (u > 0 ? gpu_log_fast(1 + u) : u) + row.shift;
  } else {
    static_assert(form == softmax);
    value = u + (row.shift - (feature < p.d ? row.log_plus : row.log_minus));
  }
  constexpr bool values = form == rectified_projection || form == relu;
  return feature < p.m ? value : values ? 0.0f : fused_nothing;
}

/// The features of a tile for the lane's rows first + g and first + g + 8: entry [n][e] is of row g + 8 (e / 2) and
/// place 8 n + 2 t + e % 2. `directions`: the tile of ω in shared memory, d_padded + 8 apart. All lanes come.
template <bool Projected, bool Exact, bool Keys>
__device__ __forceinline__ void features_of_rows(const FusedProblem& p, const FusedHead& head,
                                                 const FusedInputs<Exact, Keys>& inputs, int first, int tile,
                                                 const Bf16* directions, const RowTerms (&terms)[2],
                                                 float (&features)[8][4]) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  if constexpr (Projected) {
    constexpr int parts = Exact ? 1 : 3;
    const int ld = p.d_padded + 8;
    const Tile<1> omega{const_cast<Bf16*>(directions), ld, 0};
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
  // One branch for all of them, not one for each.
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

/// One feature of one row, the slow way. `column`: its place among all m_padded.
template <bool Projected, bool Exact, bool Keys>
__device__ inline float feature_of_row(const FusedProblem& p, const FusedHead& head,
                                       const FusedInputs<Exact, Keys>& inputs, const RowTerms& terms, int row, int tile,
                                       int place) {
  const int feature = feature_at<Projected>(tile, place);
  float u = 0;
  if constexpr (Projected) {
    float x[8];
    const Bf16* omega = head.directions(p) + static_cast<std::int64_t>(feature) * p.d_padded;
    for (int column = 0; column < p.d; column += 8) {
      inputs.entries(row, column, x);
      const Bf16* group =
          omega + (column & ~31) + 2 * ((column >> 3) & 3);  // entry 8 t + 2 r + e stands at 8 r + 2 t + e
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

/// exp(shift) times the feature; of a log feature exp(feature + shift). In the form `values` the row's own logarithm is
/// its shift.
__device__ __forceinline__ float weighted(const FusedProblem& p, float feature, float row_shift, float shift) {
  const float e = gpu_exp_fast((p.values ? row_shift : feature) + shift);
  return p.values ? feature * e : e;
}
/// The part of it that maxima are taken of.
__device__ __forceinline__ float log_size(const FusedProblem& p, float feature, float row_shift) {
  return p.values ? row_shift : feature;
}

/// The maximum over the warp's 16 rows of each column, plus `shift` of its row, written to target[64] by the lanes that
/// end up with it: halves of the columns change hands with each step.
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
  // Lane 16 a + 8 b + 4 c holds the pair of column block n = 4 a + 2 b + c, which is g.
  target[8 * g + 2 * t] = two[0];
  target[8 * g + 2 * t + 1] = two[1];
}

// ---- tiles from memory ----

/// Begins to copy the tile of directions to shared memory, rows d_padded + 8 apart. Committed and waited for by the
/// caller.
__device__ inline void load_directions(const FusedProblem& p, const FusedHead& head, int tile, Bf16* target) {
  const int vectors = p.d_padded / 8, ld = p.d_padded + 8;
  const Bf16* source = head.directions(p) + static_cast<std::int64_t>(tile) * fused_tile * p.d_padded;
  for (int i = static_cast<int>(threadIdx.x); i < fused_tile * vectors; i += fused_threads) {
    const int row = i / vectors, column = i % vectors * 8;
    cp_async16(target + row * ld + column, source + row * p.d_padded + column);
  }
}

/// Rows [first, first + 64) and columns [column, column + width) of v or g, zeros outside [from, until) and where
/// `inputs` has no row. In Exact copies of whole vectors are only begun; committed and waited for by the caller.
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

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
