#pragma once
// The composed kernels of linear attention on GPUs: every map and option of linear_attention.h that the fused kernels
// do not support. Notation and definitions are those of log_features_tile-inl.h and plain_features_tile-inl.h.
//
// Three kinds of kernels share a scratch in global memory, and products (composed_product.cuh) connect them:
//   features  inputs, feature maps and their gradients, row by row (composed_features.cuh)
//   states    sums over the keys of each chunk, and the scan over chunks (composed_states.cuh)
//   chunks    the weights of each query: of pairs near it, and of the state (composed_chunks.cuh)
//
// Position p is that of key p and of query p - query_offset. Chunk t is the positions [t·chunk, (t + 1)·chunk). A query
// of chunk t meets the keys of chunks t - before to t + after pair by pair (the band), and all others through the state
// before chunk t - before and, not causal, the state after chunk t + after. Without causality, windows and documents
// there is no band, and queries meet all keys through the total. Documents and masks limit rows within a chunk, so the
// launches depend on shapes alone.
//
// The scratch covers a span of chunks of all heads, and its size is limited: later spans start from the states at
// their borders. Rows of a span are numbered from 0, also across its chunks. Every row of x, features and so on is
// padded to 16 elements, with zeros where products read them. Matrices of pairs store pair (i, j) of a head at
// i·near + j + before·chunk, so that both a chunk's rows and a chunk's columns are matrices of constant stride.
#include "framework/ops/attention/feature_maps/feature_map_rows_cuda.cuh"
#include "framework/ops/attention/linear/cuda/composed_product.cuh"
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Rows of one [batch, n, heads, width] view; strides in elements. T is the compute type; storage may be bfloat16.
struct ComposedRows {
  void* data;  // null: not needed
  std::int64_t batch, row, head;
  bool bfloat16, accumulates;

  template <class T>
  __device__ T read(std::int64_t at) const {
    if constexpr (sizeof(T) == 4) {
      if (bfloat16) return to_compute(static_cast<const __nv_bfloat16*>(data)[at]);
    }
    return static_cast<const T*>(data)[at];
  }
  template <class T>
  __device__ void write(std::int64_t at, T value) const {
    if (accumulates) value += read<T>(at);
    if constexpr (sizeof(T) == 4) {
      if (bfloat16) {
        static_cast<__nv_bfloat16*>(data)[at] = from_compute<__nv_bfloat16>(value);
        return;
      }
    }
    static_cast<T*>(data)[at] = value;
  }
};

/// Returns exp(x), at most the largest finite number, so that zero times it is zero; NaN for NaN.
__device__ inline float exponential(float x) { return gpu_exp(x > 88.7f ? 88.7f : x); }
__device__ inline double exponential(double x) { return gpu_exp(x > 709.7 ? 709.7 : x); }

/// States at the borders of chunks: border k of head h is after chunk k - 1 and before chunk k. Each direction of the
/// scan has its own.
template <class T>
struct ComposedStates {
  T* sum;            // S [m_padded, v_padded]
  Parts<T> parts;    // of S
  T* normalizer;     // z [m]
  T *own, *maximum;  // c [m]: of the chunk alone, and including all before
  T* not_finite;     // [d_value]: sum of the values that are not finite, which S leaves out
  T* scalars;        // M of the chunk alone, M, whether the chunk's sum starts a new document
  int* rows;         // [heads, chunks, 2]: rows of each chunk in its sum
  std::int64_t borders;

  /// One border of all heads. Null arrays: empty states.
  struct Border {
    T *sum, *normalizer, *maximum, *magnitude, *not_finite;
    std::int64_t sum_head, sum_row, feature_head, magnitude_head, value_head;
  };
  __host__ Border border(std::int64_t k, std::int64_t m, std::int64_t m_padded, std::int64_t v_padded) const {
    return {sum + k * m_padded * v_padded,
            normalizer + k * m,
            maximum + k * m,
            scalars + k * 3 + 1,
            not_finite + k * v_padded,
            borders * m_padded * v_padded,
            v_padded,
            borders * m,
            borders * 3,
            borders * v_padded};
  }
};

/// One side of a span: its queries or its keys. Arrays have one row per head and position.
template <class T>
struct ComposedSide {
  T* x;                             // [d_padded]: inputs of the map, after centering and scaling
  T* features;                      // [m_padded]: logarithms, or values
  T* size;                          // logarithms: the row's maximum; values: the norm |ψ|
  T* log;                           // queries: row logarithm, for the hybrid; keys of the form `values`: s_j
  T* weight;                        // keys: logarithm of the key's weight
  int* not_finite;                  // keys: whether the value has an element that is not finite
  Parts<T> x_parts, near, rotated;  // near: logarithms: exp(features - size); values: ψ; rotated: R near
  Parts<T> vectors;                 // [v_padded]: values, without those that are not finite; or g
  Parts<T> weighted;                // [v_padded], form `values`: vectors times the row's weight in the state
  Parts<T> sums;                    // [m_padded], logarithms: weights of the row in the state
  Parts<T> far[2];                  // [m_padded], logarithms: weights of the states before and after
  T* factor[2];     // factor of what the product with each state gives; 0: the row does not meet that state
  T* through[2];    // products with the states: outputs or d_v [v_padded]
  T* near_vectors;  // [v_padded]: outputs, or d_v, of near pairs
  // backward
  T* d_features;                     // [m_padded]
  T* d_through[2];                   // [m_padded]: S g, or G v
  T *d_near, *d_near_rotated;        // [m_padded]
  Parts<T> d_projected;              // [m_padded]
  T *half_gradient, *d_x, *d_exact;  // [1], [d_padded], [d_padded]
  T* d_weight;                       // keys: gradient of `weight`
};

/// A chunk of one head of one sequence, in a span.
struct ComposedPlace {
  int head, sequence, query_head, key_head, t;  // head: sequence · n_heads + query_head
};

/// Arguments of the kernels. T is float or double.
template <class T>
struct Composed {
  FeatureMap map;
  FeatureMapOptions map_options;
  int mean_over;  // number of features that the map's kernel is the mean over
  int chunk, before, after, near, d, d_padded, d_value, v_padded, m, m_padded, n_projections, parts;
  bool causal, paired, stated, total, rms, guarded, weighted, rotates, softmax, compensated;
  int batch, n_heads, n_kv_heads;
  std::int64_t n_query, n_key, window, softmax_window, query_offset;
  T guard, score_scale;
  ComposedRows query, key, value, output, d_output, d_query, d_key, d_value_rows;
  const void* gate;
  DType gate_dtype;
  const T *random_projection, *direction_norms, *query_center, *key_center, *scaling, *oprf_a;
  Parts<T> projection_parts;  // [sets, padded n_projections, d_padded]
  int direction_sets;
  const std::int32_t *mask, *document_first, *document_end;  // [batch, n]; the latter two: each token's document
  T *top, *inverse_denominator;                              // [batch, n_heads, n_query]; null: not stored
  const double* rotation;                                    // [1 + powers, 2, half]
  bool has_start;
  // The span: position of row 0, rows and chunks, and the chunks whose results it writes.
  std::int64_t first;
  int rows, chunks, begin, end;
  ComposedSide<T> q, k;
  ComposedStates<T> states[2], gathered[2];  // before and after: sums over keys, and over queries
  T* rotations;                              // [batch, rows, 2, half]
  // pairs
  T *product, *rotated_product, *score, *g_v;
  Parts<T> weights, d_product, d_rotated, d_score;
  // one element per query: stabilizer, 1 / denominator, δ, gradients of log and gate; relative denominator or -1
  T *stabilizer, *inverse, *delta, *d_log, *relative;
  T* g;  // [v_padded]

  // The logarithm of zero: finite, so that the difference of two is not NaN; its exponential is zero next to any real
  // one.
  static constexpr T nothing = static_cast<T>(-1e30);
  // Positive features with a rotated numerator: a denominator smaller than this, relative to the numerator's terms, is
  // underflow.
  static constexpr T min_rotated_denominator = static_cast<T>(1e-30);

  __host__ __device__ int heads() const { return batch * n_heads; }
  __host__ __device__ int half() const { return m / 2; }
  /// Elements of a head's matrix of pairs.
  __host__ __device__ std::int64_t band() const {
    return (static_cast<std::int64_t>(rows) * (near + 1) + near + 15) / 16 * 16;
  }
  __device__ const ComposedSide<T>& side(bool of_keys) const { return of_keys ? k : q; }
  __device__ ComposedPlace place(int head, int t) const {
    const int query_head = head % n_heads;
    return {head, head / n_heads, query_head, query_head / (n_heads / n_kv_heads), t};
  }
  __device__ std::int64_t row(const ComposedPlace& at, int i) const {
    return static_cast<std::int64_t>(at.head) * rows + i;
  }
  __device__ std::int64_t pair(const ComposedPlace& at, int i, int j) const {
    return at.head * band() + static_cast<std::int64_t>(i) * near + j + before * chunk;
  }
  /// The rows that row i of the place's chunk meets pair by pair.
  __device__ int band_begin(const ComposedPlace& at) const { return gpu_max(at.t - before, 0) * chunk; }
  __device__ int band_end(const ComposedPlace& at) const { return gpu_min(at.t + after + 1, chunks) * chunk; }
  /// Whether row i is a query, or a key.
  __device__ bool is_query(int i) const {
    const std::int64_t at = first + i - query_offset;
    return at >= 0 && at < n_query;
  }
  __device__ bool is_key(int i) const { return first + i < n_key; }
  /// Whether row i is in a chunk whose results the span writes.
  __device__ bool is_own(int i) const { return i >= begin * chunk && i < end * chunk; }
  __device__ bool is_masked(const ComposedPlace& at, int j) const {
    return mask && mask[at.sequence * n_key + first + j] == 0;
  }
  __device__ std::int64_t query_address(const ComposedRows& view, const ComposedPlace& at, int i) const {
    return at.sequence * view.batch + (first + i - query_offset) * view.row + at.query_head * view.head;
  }
  /// Inputs of a key are shared by a group of query heads; gradients have one part for each.
  __device__ std::int64_t key_address(const ComposedRows& view, const ComposedPlace& at, int j) const {
    return at.sequence * view.batch + (first + j) * view.row + at.key_head * view.head;
  }
  __device__ T* per_query(T* all, const ComposedPlace& at, int i) const {
    return all + at.head * n_query + (first + i - query_offset);
  }
  __device__ std::int64_t document_begin(int sequence, std::int64_t position) const {
    return document_first ? document_first[sequence * n_key + position] : 0;
  }
  __device__ std::int64_t document_stop(int sequence, std::int64_t position) const {
    return document_end ? document_end[sequence * n_key + position] : n_key;
  }
  /// Returns the border of the state of the other side that rows of chunk t meet in a direction. Product offsets use
  /// the same numbers.
  __host__ __device__ int border(bool of_keys, int direction, int t) const {
    if (total) return 0;
    const int back = of_keys ? after : before, ahead = of_keys ? before : after;
    return direction == 0 ? gpu_max(t - back, 0) : gpu_min(t + ahead + 1, chunks);
  }
  /// Whether row i meets that state: its document continues beyond the border.
  __device__ bool meets(bool of_keys, int direction, const ComposedPlace& place, int i) const {
    if (total) return true;
    const std::int64_t at = first + static_cast<std::int64_t>(border(of_keys, direction, place.t)) * chunk;
    if (direction == 0) return document_begin(place.sequence, first + i) < at || (at == 0 && has_start && !of_keys);
    return document_stop(place.sequence, first + i) > at;
  }
  /// Whether a side meets the states of a direction.
  __host__ __device__ bool scans(bool of_keys, int direction) const {
    if (!stated) return false;
    return total ? direction == 0 : !causal || direction == (of_keys ? 1 : 0);
  }

  __device__ T gate_of(const ComposedPlace& place) const {
    if (!gate) return T(0);
    const int at = place.query_head;
    return gate_dtype == DType::float64    ? static_cast<T>(static_cast<const double*>(gate)[at])
           : gate_dtype == DType::bfloat16 ? static_cast<T>(to_compute(static_cast<const __nv_bfloat16*>(gate)[at]))
                                           : static_cast<T>(static_cast<const float*>(gate)[at]);
  }
  /// Run by one thread: describes a head's feature map.
  __device__ void describe(const ComposedPlace& place, GpuFeatureRows<T>& f) const {
    const int of_head = place.query_head;
    const std::int64_t set = direction_sets > 1 ? of_head : 0;
    f.map = map;
    f.d = d;
    f.m = m;
    f.n_projections = n_projections;
    f.order = static_cast<int>(map_options.order);
    f.ld_x = d_padded;
    f.ld_m = m_padded;
    f.random_projection = random_projection ? random_projection + set * n_projections * d : nullptr;
    f.direction_norms = direction_norms ? direction_norms + set * n_projections : nullptr;
    f.constants = gpu_map_constants<T>(map_options, d, mean_over, oprf_a ? oprf_a[of_head] : T(0));
  }
};

/// The pairs of row i that are visible: feature weights for [first, soft) and [soft_end, end), exact softmax weights
/// for [soft, soft_end).
struct ComposedPairs {
  int first, soft, soft_end, end;

  template <class T>
  __device__ static ComposedPairs of(const Composed<T>& c, const ComposedPlace& place, int i) {
    const std::int64_t at = c.first + i;
    std::int64_t begin = gpu_max(c.document_begin(place.sequence, at), c.first + c.band_begin(place)),
                 stop = gpu_min(c.document_stop(place.sequence, at), c.first + c.band_end(place));
    if (c.causal) stop = gpu_min(stop, at + 1);
    if (c.window > 0) {
      begin = gpu_max(begin, at - c.window + 1);
      stop = gpu_min(stop, at + c.window);
    }
    ComposedPairs pairs{static_cast<int>(begin - c.first), 0, 0, static_cast<int>(stop - c.first)};
    pairs.soft = pairs.soft_end = pairs.end;
    if (c.softmax_window > 0) {
      pairs.soft = static_cast<int>(gpu_max(begin, at - c.softmax_window + 1) - c.first);
      pairs.soft_end = static_cast<int>(gpu_min(stop, at + c.softmax_window) - c.first);
    }
    return pairs;
  }
  __device__ bool is_soft(int j) const { return j >= soft && j < soft_end; }
  __device__ bool is_feature(int j) const { return j >= first && j < end && !is_soft(j); }
};

/// A block of row kernels: 16 rows of one head.
inline constexpr int composed_rows = 16, composed_threads = 128;
struct ComposedBlock {
  ComposedPlace place;
  int row;
  template <class T>
  __device__ static ComposedBlock of(const Composed<T>& c) {
    const int blocks = c.rows / composed_rows, row = static_cast<int>(blockIdx.x) % blocks * composed_rows;
    return {c.place(static_cast<int>(blockIdx.x) / blocks, row / c.chunk), row};
  }
};
/// Calls body(f) for this lane's even columns of [0, width), width even.
template <class Body>
__device__ inline void for_column_pairs(int width, const Body& body) {
  for (int f = 2 * lane_index(); f < width; f += 64) body(f);
}

/// target = R source, or Rᵀ source, for one row of m features; run by one warp. They may be equal.
template <class T, class Source, class Target>
__device__ inline void rotate_row(const T* rotation, int m, bool back, const Source& source, const Target& target) {
  const int half = m / 2;
  for_columns(half, [&](int f) {
    const T x = source(f), y = source(half + f), cosine = rotation[f],
            sine = back ? -rotation[half + f] : rotation[half + f];
    target(f, gpu_fma(-y, sine, x * cosine));
    target(half + f, gpu_fma(x, sine, y * cosine));
  });
  if (m % 2 != 0 && lane_index() == 0) target(m - 1, source(m - 1));
}
template <class T>
__device__ inline const T* rotation_of(const Composed<T>& c, const ComposedPlace& at, int i) {
  return c.rotations + (static_cast<std::int64_t>(at.sequence) * c.rows + i) * 2 * c.half();
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
