#pragma once
// Arguments of the fused kernels of linear attention, and rows of queries and keys as the feature map reads them.
#include "framework/ops/attention/linear/cuda/fused_operands.cuh"
// After kernel.h, which must precede fmt.
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr float fused_nothing = -1e30f;      // log2 of zero: finite, so that the difference of two is not NaN
inline constexpr float fused_min_product = 1e-30f;  // below it a pair is recomputed (docs/internals/numerics.md)

/// Rows of all heads of all sequences; strides in elements.
struct FusedRows {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool is_bfloat16 = false;
  bool vectors = false;  // each group of 8 entries supports 16-byte accesses
};

/// Queries with their output gradients, or keys with their values: one side is summed over, the other is multiplied
/// with the sum.
struct FusedSide {
  FusedRows rows, vectors;  // x [.., d]; g or v [.., width]
  int n = 0;
  // [batch, n_heads, n], queries in backward: the stabilizer, 1 / denominator and g·output. Null: 0, 1 and 0.
  const float *top = nullptr, *inverse = nullptr, *delta = nullptr;
};

/// Arguments of the op that all kernels use.
struct FusedProblem {
  FusedForm form = FusedForm::none;  // of the feature map
  bool values = false;               // features are values, not logarithms
  bool causal = false;
  int batch = 0, n_heads = 0, group = 1;  // group: query heads per key-value head
  int d = 0, d_padded = 0, d_value = 0, m = 0, m_padded = 0;
  float scale = 1, kernel_epsilon = 0;
  const Bf16* random_projection =
      nullptr;  // [sets, m_padded, d_padded], columns in the order of products: ω, then -ω if the map uses it
  const float* squares = nullptr;  // [sets, m_padded]: |ω|²
  bool directions_per_head = false;
  const float *oprf_a = nullptr, *query_center = nullptr, *key_center = nullptr, *scaling = nullptr;
  const std::int32_t* kept = nullptr;       // [batch, n_key]; null: all
  const std::int32_t* run_start = nullptr;  // [batch, n]: start of each token's document; null: one document
  int segments = 1, segment_chunks = 1;     // along the sequence
};

/// Sums over the tokens before each segment (for gradients: after it): sum [batch · n_heads, segments, m_padded,
/// d_value], the others [batch · n_heads, segments, m_padded]. Features are in the order of products. `maximum` is the
/// logarithm that a feature's terms are under: their maximum, or in the plain case an integer near it
/// (fused_plain_states.cuh).
struct FusedStates {
  float *sum = nullptr, *extra = nullptr, *maximum = nullptr;
  int segments = 1;
  /// Returns the index of a segment's state; if not causal, of the head's only state.
  __device__ std::int64_t at(int head, int segment, bool causal) const {
    return static_cast<std::int64_t>(head) * segments + (causal ? segment : 0);
  }
};

/// Rows that a plain kernel (fused_plain.cuh) leaves to the general one, because its scales lose part of their sums: of
/// each chunk and warp the lanes that hold rows g and g + 8. The decision about an output depends on its row and
/// earlier tokens alone, and the general kernel writes no other rows: no later token changes how it is computed.
struct FusedLostRows {
  std::uint32_t* words = nullptr;  // [lines of blocks, chunks, warps, 2]; null: the general kernel computes all rows
  int chunks = 0;

  __device__ __forceinline__ std::uint32_t* at(int line, int first) const {
    return words + (static_cast<std::int64_t>(line) * chunks + first / fused_chunk) * (2 * fused_warps);
  }
  /// Records the warp's rows of a chunk. Called by all lanes.
  __device__ __forceinline__ void record(int line, int first, const std::uint32_t (&rows)[2]) const {
    if (lane_index() == 0)
      store_vector(at(line, first) + 2 * warp_index(), Vector<std::uint32_t, 2>{{rows[0], rows[1]}});
  }
  /// Returns how many chunks of [begin, end) the general kernel computes, starting from the last one if `backward`: all
  /// up to the one in which it finds no more rows of its own. Called by all lanes.
  __device__ inline int chunks_to_compute(int line, int begin, int end, bool backward) const {
    const int all = ceil_div(end - begin, fused_chunk);
    if (words == nullptr) return all;
    int count = 0;
    for (int i = lane_index(); i < all * 2; i += 32) {  // half a chunk each
      const auto four = load_vector<4>(at(line, begin) + 4 * i);
      if ((four[0] | four[1] | four[2] | four[3]) != 0) count = gpu_max(count, backward ? all - i / 2 : i / 2 + 1);
    }
    return warp_max(count);
  }
  /// Returns whether the general kernel computes row i of a chunk.
  __device__ __forceinline__ bool has(int line, int first, int i) const {
    return words == nullptr || (at(line, first)[i / 8] >> 4 * (i % 8) & 1u) != 0;
  }
};

/// The head that a block works on. To save registers, values that follow from the kernel's arguments are computed where
/// they are used.
struct FusedHead {
  int batch, head, kv_head;
  float factor;  // factor of ω·x
  float oprf_a;

  __device__ __forceinline__ const Bf16* random_projection(const FusedProblem& p) const {
    return p.random_projection + static_cast<std::int64_t>(p.directions_per_head ? head * p.m_padded : 0) * p.d_padded;
  }
  __device__ __forceinline__ const float* squares(const FusedProblem& p) const {
    return p.squares + (p.directions_per_head ? head * p.m_padded : 0);
  }
  /// Returns the document starts of this sequence; null if all tokens are one document.
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

/// The rows of one head of one sequence: their address and which of them exist.
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

/// Reads eight neighboring entries of a bfloat16 row into four words.
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
/// Reads eight neighboring entries of a row of either type.
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

/// The inputs of one side of one head, as the map reads them: centered, scaled, and zero for missing entries (past the
/// end, masked, column >= d).
template <bool Exact, bool Keys>
struct FusedInputs {
  const FusedProblem& p;
  const FusedSide& side;
  const void* data;
  int batch, head;  // query head, which selects the constants

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
  /// Centers and scales entries [column, column + n).
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
  /// Loads entries [column, column + 32) of this lane's rows first + g and first + g + 8, as two operands.
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
/// Returns whether log features of keys include -|k'|²/2.
__device__ __forceinline__ bool shifts_keys(FusedForm form) {
  return form == FusedForm::projection || form == FusedForm::stretched_projection;
}
/// Terms of a row, as logarithms to base 2. shift is added to all log features, or to the row logarithm in the form
/// `values`: for keys -|k'|²/2 if the map uses it, and the weight from centering and mask. log_plus and log_minus are
/// what softmax subtracts, for either sign.
struct RowTerms {
  float shift, log_plus, log_minus;
};
/// Computes the terms of the lane's rows first + g and first + g + 8. Called by all lanes.
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
      const float scale = p.scale * p.scale * log2_of_e;
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
        for (int i = 0; i < 8; ++i) {
          plus += exp2_fast((x[i] - largest) * log2_of_e);
          minus += exp2_fast((least - x[i]) * log2_of_e);
        }
      }
      terms[half].log_plus = (largest + gpu_log(quad_sum(plus))) * log2_of_e;
      terms[half].log_minus = (gpu_log(quad_sum(minus)) - least) * log2_of_e;
    }
    if (Keys && !inputs.exists(row)) terms[half].shift = fused_nothing;
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
