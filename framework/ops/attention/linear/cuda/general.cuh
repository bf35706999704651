#pragma once
// The general kernels of linear attention on GPUs: every map and option of linear_attention.h. Arguments of the
// kernels, and the tile that a block works on. Notation and definitions are those of log_features_tile-inl.h and
// plain_features_tile-inl.h.
//
// A block processes one segment of one head of one sequence: a run of chunks whose borders depend only on shapes (and
// document borders). States at segment borders come from the segments' own sums and a scan over them
// (general_states.cuh).
//
// The windowed hybrid without causality makes two causal sweeps, as on the CPU: over the keys up to each query's own,
// and, over the tokens in reverse order, over later keys.
#include "framework/ops/attention/feature_maps/feature_map_rows_cuda.cuh"
#include "framework/ops/attention/linear/cuda/general_program.h"
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Rows of one [batch, n, heads, width] view; strides in elements. T is the compute type; storage may be bfloat16.
struct GeneralRows {
  void* data;  // null: not needed
  std::int64_t batch, row, head;
  bool bfloat16, accumulates;
};

template <class T>
__device__ inline T read_element(const GeneralRows& rows, std::int64_t at) {
  if constexpr (sizeof(T) == 4) {
    if (rows.bfloat16) return to_compute(static_cast<const __nv_bfloat16*>(rows.data)[at]);
  }
  return static_cast<const T*>(rows.data)[at];
}
template <class T>
__device__ inline void write_element(const GeneralRows& rows, std::int64_t at, T value) {
  if (rows.accumulates) value += read_element<T>(rows, at);
  if constexpr (sizeof(T) == 4) {
    if (rows.bfloat16) {
      static_cast<__nv_bfloat16*>(rows.data)[at] = from_compute<__nv_bfloat16>(value);
      return;
    }
  }
  static_cast<T*>(rows.data)[at] = value;
}

/// Work of a kernel on its segments.
enum class GeneralPhase : std::uint8_t {
  local_states,  ///< forward in time: sums over the keys of one segment
  outputs,       ///< outputs, from the state at the start of the segment
  d_query,       ///< d_query, from the state at the start of the segment
  local_gather,  ///< backward in time: sums over the queries of one segment
  d_key          ///< d_key and d_value, from the queries gathered after the segment
};

/// Extents of a block's tiles.
struct GeneralSizes {
  int chunk, near, d, d_value, m;
  bool logarithms, softmax_pairs, compensated, rotates;

  /// Pads row lengths so that the lanes of a tensor-core operand access different banks.
  __host__ __device__ static int padded(int n) { return (n + 3) / 4 * 4 + 4; }
  __host__ __device__ int ld_d() const { return padded(d); }
  __host__ __device__ int ld_v() const { return padded(d_value); }
  __host__ __device__ int ld_m() const { return padded(m); }
  __host__ __device__ int ld_n() const { return padded(near); }
  __host__ __device__ int half() const { return m / 2; }
};

/// A state at a segment border, stored in a slot of global memory.
template <class T>
struct GeneralSlot {
  T *sum, *normalizer;       // [m, d_value], [m]
  T *own_maximum, *maximum;  // [m]: of the segment alone, and including all before
  T* scalars;                // own magnitude, magnitude, whether the segments before are another document

  __host__ __device__ static std::int64_t elements(const GeneralSizes& s) {
    return (static_cast<std::int64_t>(s.m) * (s.d_value + 3) + 3 + 3) / 4 * 4;
  }
  __device__ static GeneralSlot at(T* slots, std::int64_t index, const GeneralSizes& s) {
    T* const sum = slots + index * elements(s);
    T* const normalizer = sum + static_cast<std::int64_t>(s.m) * s.d_value;
    return {sum, normalizer, normalizer + s.m, normalizer + 2 * s.m, normalizer + 3 * s.m};
  }
};

/// Arguments of the kernels. T is float or double.
template <class T>
struct GeneralArguments {
  GeneralSizes sizes;
  FeatureMap map;
  int mean_over;  // number of features that the map's kernel is the mean over
  FeatureMapOptions map_options;
  bool causal, rms, guarded, weighted, three_parts;
  std::int64_t batch, n_query, n_key, n_heads, n_kv_heads, window, softmax_window, query_offset, first_position;
  T guard, score_scale;
  GeneralRows query, key, value, output, d_output, d_query, d_key, d_value;
  const void* gate;
  DType gate_dtype;
  const T *random_projection, *direction_norms, *query_center, *key_center, *scaling, *oprf_a;
  std::int64_t n_projections, direction_sets;
  const std::int32_t *mask, *document_first,
      *document_end;             // [batch, n]; the latter two: borders of each token's document
  T *top, *inverse_denominator;  // [batch, n_heads, n_query]
  const T *start_sum, *start_normalizer, *start_maximum, *start_magnitude;
  T *end_sum, *end_normalizer, *end_maximum, *end_magnitude;
  const double* rotation;  // [1 + powers, 2, half]
  // Two sweeps. reversed: whether this is the second sweep, whose token t is token n - 1 - t in memory (row strides are
  // already negated). swept: results of the first sweep [batch, n_heads, n, d_value + 3]: Σ_j w_ij v_j, stabiliser,
  // Σ_j w_ij and its magnitude.
  bool reversed;
  T* swept;
  // Segments: tokens per segment (a multiple of the chunk), number of segments, and the slots of all heads.
  std::int64_t query_length, query_segments, key_length, key_segments, slots_a_head;
  T* slots;
  GeneralProgram program;
  GeneralPhase phase;
  /// Backward visits keys in whole chunks of a document, starting with the first chunk that a chunk of queries meets.
  bool whole_chunks;
  T* report;       // [batch, n_heads, query_segments, 2]
  double* d_gate;  // [batch, n_heads, query_segments]
  char* scratch;   // for all blocks
  std::int64_t scratch_bytes, shared_bytes;

  /// Returns a token's position in memory, for arrays without explicit strides.
  __device__ std::int64_t place(std::int64_t token) const { return reversed ? n_key - 1 - token : token; }
  __host__ __device__ bool has_state_keys() const { return window == 0; }
  __host__ __device__ bool has_near_keys() const { return causal || window > 0; }
  __host__ __device__ bool pure() const { return causal && window == 0 && softmax_window == 0; }
  /// Returns how far before a query a key can be that the query meets pair by pair.
  __host__ __device__ std::int64_t reach() const { return gpu_max(gpu_max(window, softmax_window), 1) - 1; }
};

/// The keys of a block of near keys that each query of a chunk meets pair by pair.
struct GeneralPairs {
  std::int64_t offset;  // position of query 0 minus the position of near key 0
  int columns;          // number of near keys
  bool causal;
  std::int64_t window, softmax_window;
  bool own_key;  // causal: whether a query attends to the key at its own position

  struct Row {
    int first, soft, end;  // feature weights for [first, soft), exact softmax weights for [soft, end)
  };
  __device__ static std::int64_t clamp(std::int64_t x, std::int64_t least, std::int64_t most) {
    return x < least ? least : x > most ? most : x;
  }
  __device__ Row row(int i) const {
    const std::int64_t at = offset + i;
    const std::int64_t end = clamp(causal ? (own_key ? at + 1 : at) : window > 0 ? at + window : columns, 0, columns);
    const std::int64_t first = window > 0 ? clamp(at - window + 1, 0, end) : 0;
    const std::int64_t soft = softmax_window > 0 ? clamp(at - softmax_window + 1, first, end) : end;
    return {static_cast<int>(first), static_cast<int>(soft), static_cast<int>(end)};
  }
  /// Returns the near key at the position of query i, or -1.
  __device__ int own(int i) const {
    const std::int64_t at = offset + i;
    return at >= 0 && at < columns ? static_cast<int>(at) : -1;
  }
};

/// Working set of a block, in shared memory. Arrays that do not fit are in the block's global scratch, which stays in
/// the L2 cache. Names are those of LinearAttentionTile.
template <class T>
struct GeneralTile {
  GeneralArguments<T> a;
  GeneralSizes s;
  GpuFeatureRows<T> map;
  std::int64_t b, head, kv_head;
  const std::int32_t* mask;
  const T *query_center, *key_center, *scaling;
  T gate;
  int not_finite;  // among the near values
  // The current job, set by the thread that walks: chunks of queries and keys, the first token of their document (which
  // has position 0), whether the state is not empty, whether earlier pairs have added gradients.
  std::int64_t query_start, key_start, document_start;
  int query_rows, key_rows;
  GeneralPairs pairs;
  bool has_state, had_pairs;
  // Vectors with one entry per row or feature.
  T *row_q, *log_q, *top, *inverse, *delta, *half_gradients, *d_log_q, *row_k, *key_weight, *size_k, *d_key_weight,
      *spare;
  T *normalizer, *normalizer_lost, *feature_max, *factors;
  // Products of pairs [chunk, near].
  T *product, *weight, *score, *rotated_product, *g_v, *d_product, *d_rotated;
  // Rows of inputs and outputs.
  T *q, *k, *v, *g, *out, *d_x, *d_x_q, *d_x_k, *d_v;
  T *state, *sum_lost;  // [m, d_value]
  // Rows of features.
  T *feature_q, *feature_k, *normal_q, *normal_k, *rotated_q, *rotated_k, *near_gradient, *d_feature;
  T *rotations_q, *rotations_k;  // [rows, 2, half]: cosines, sines
  // Form `values`: c and M of the state.
  T maximum, magnitude, next_maximum, next_magnitude;
  // Statistics per warp: lost denominators, the least relative denominator, ∂ loss / ∂ gate.
  int warp_lost[32];
  T warp_least[32];
  double warp_gate[32];
};

/// Allocates shared memory until it is full, then the block's scratch. With both null it only counts.
struct GeneralPlacement {
  char *shared, *scratch;
  std::int64_t shared_left, scratch_bytes = 0;

  template <class T>
  __host__ __device__ void operator()(T*& pointer, std::int64_t elements) {
    const std::int64_t bytes = (elements * static_cast<std::int64_t>(sizeof(T)) + 15) / 16 * 16;
    if (bytes <= shared_left) {
      pointer = reinterpret_cast<T*>(shared);
      shared += bytes;
      shared_left -= bytes;
    } else {
      pointer = reinterpret_cast<T*>(scratch + scratch_bytes);
      scratch_bytes += bytes;
    }
  }
  template <class... Pointers>
  __host__ __device__ void all(std::int64_t elements, Pointers&... pointers) {
    ((*this)(pointers, elements), ...);
  }
};

/// Allocates the arrays that a phase needs, the most frequently used first.
template <class T>
__host__ __device__ inline void place_tile(GeneralTile<T>& t, const GeneralSizes& s, GeneralPhase phase,
                                           GeneralPlacement& place) {
  const bool queries = phase != GeneralPhase::local_states, keys = phase != GeneralPhase::local_gather;
  const bool gradients = phase != GeneralPhase::local_states && phase != GeneralPhase::outputs;
  const bool pairs = queries && keys, d_query = phase == GeneralPhase::d_query, d_key = phase == GeneralPhase::d_key;
  const std::int64_t chunk = s.chunk, near = s.near, products = chunk * s.ld_n(), features_q = chunk * s.ld_m(),
                     features_k = near * s.ld_m();
  place.all(chunk, t.row_q, t.log_q, t.top, t.inverse, t.delta, t.half_gradients, t.d_log_q);
  place.all(near, t.row_k, t.key_weight, t.size_k);
  if (d_key) place.all(near, t.d_key_weight, t.spare);
  place.all(s.m, t.normalizer, t.normalizer_lost, t.feature_max, t.factors);
  if (pairs) {
    place(t.product, products);
    if (phase == GeneralPhase::outputs || d_key) place(t.weight, products);
    if (s.softmax_pairs) place(t.score, products);
    if (s.rotates) place(t.rotated_product, products);
    if (gradients) {
      place(t.g_v, products);
      place(t.d_product, products);
      if (s.rotates) place(t.d_rotated, products);
    }
  }
  if (queries) place(t.q, chunk * s.ld_d());
  if (keys) {
    place(t.k, near * s.ld_d());
    place(t.v, near * s.ld_v());
  }
  if (gradients) place(t.g, chunk * s.ld_v());
  if (phase == GeneralPhase::outputs) place(t.out, chunk * s.ld_v());
  place(t.state, static_cast<std::int64_t>(s.m) * s.ld_v());
  if (queries) place(t.feature_q, features_q);
  if (keys) place(t.feature_k, features_k);
  if (pairs && s.logarithms) {
    place(t.normal_k, features_k);
    place(t.normal_q, features_q);
  }
  if (d_query || d_key) {
    place(t.d_feature, features_q);
    place(t.near_gradient, features_q);
    place(t.d_x, chunk * s.ld_d());
    if (s.softmax_pairs) place(d_query ? t.d_x_q : t.d_x_k, chunk * s.ld_d());
    if (d_key) place(t.d_v, chunk * s.ld_v());
  }
  if (s.compensated) place(t.sum_lost, static_cast<std::int64_t>(s.m) * s.ld_v());
  if (s.rotates) {
    if (queries) place(t.rotations_q, chunk * 2 * s.half());
    if (keys) place(t.rotations_k, near * 2 * s.half());
    if (pairs) {
      place(t.rotated_q, features_q);
      place(t.rotated_k, features_k);
    }
  }
}

/// Tokens [first, end) of one document, or of the whole sequence without a document mask.
struct GeneralRange {
  std::int64_t first_query, end_query, first_key, end_key;
};
template <class T>
__device__ inline GeneralRange general_range(const GeneralArguments<T>& a, std::int64_t b, std::int64_t token) {
  if (!a.document_first) return {0, a.n_query, 0, a.n_key};
  const std::int64_t at = b * a.n_key + a.place(token);
  std::int64_t first = a.document_first[at], end = a.document_end[at];
  if (a.reversed) {
    const std::int64_t after = end;
    end = a.n_key - first;
    first = a.n_key - after;
  }
  return {first, end, first, end};
}
/// Returns the first chunk of `n` tokens that starts at `token` or later, or n if there is none. Chunks restart with
/// each document.
template <class T>
__device__ inline std::int64_t general_chunk_from(const GeneralArguments<T>& a, std::int64_t b, std::int64_t token,
                                                  std::int64_t n) {
  if (token >= n) return n;
  if (!a.document_first) return token;  // segments consist of whole chunks
  const GeneralRange range = general_range(a, b, token);
  const std::int64_t start = range.first_key + ceil_div(token - range.first_key, a.sizes.chunk) * a.sizes.chunk;
  return gpu_min(start, range.end_key);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
