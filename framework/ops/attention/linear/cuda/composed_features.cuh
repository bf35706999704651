#pragma once
// The composed kernels of linear attention on GPUs: rows in and out, feature maps and their gradients. One warp per
// row. Rows beyond the sequence are zeros.
#include "framework/cuda/kernels/cos_sin.h"
#include "framework/ops/attention/linear/cuda/composed.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// parts [sets, padded rows, padded width] = source [sets, rows, width], and norms [sets, rows] = |row|² if not null.
/// One warp per row.
template <class T>
__global__ void __launch_bounds__(256, 1)
    linear_attention_projection_kernel(const T* source, std::int64_t sets, int rows, int padded_rows, int width,
                                       int padded_width, Parts<T> parts, T* norms) {
  for (std::int64_t at = global_thread() / 32; at < sets * padded_rows; at += grid_stride() / 32) {
    const std::int64_t set = at / padded_rows, row = at % padded_rows;
    const T* const from = source + (set * rows + row) * width;
    for_columns(padded_width,
                [&](int f) { parts.put(at * padded_width + f, row < rows && f < width ? from[f] : T(0)); });
    if (!norms || row >= rows) continue;
    const T square = row_dot(from, from, width);
    if (lane_index() == 0) norms[set * rows + row] = square;
  }
}

/// Cosines and sines [1 + powers, 2, half] of the angles p · base^(-2f/m) for p = first_position and 1, 2, 4, ...
template <class T>  // a template, so that each file compiles its own kernel
__global__ void __launch_bounds__(256, 1)
    linear_attention_powers_kernel(double log_base, int m, std::int64_t first_position, std::int64_t powers, T* table) {
  const int half = m / 2;
  for (std::int64_t at = global_thread(); at < (1 + powers) * half; at += grid_stride()) {
    const std::int64_t row = at / half, f = at % half;
    const double frequency = gpu_exp(-2 * static_cast<double>(f) / static_cast<double>(m) * log_base);
    const double position = static_cast<double>(row == 0 ? first_position : std::int64_t{1} << (row - 1));
    furlong::cos_sin(frequency * position, table[row * 2 * half + f], table[row * 2 * half + half + f]);
  }
}
/// The rotations of a span's positions, composed from those of the call's first position and of 1, 2, 4, ... tokens in
/// double precision, so that they are as accurate at the millionth token as at the first. One warp per row.
template <class T>
__global__ void __launch_bounds__(256, 1) linear_attention_rotations_kernel(const Composed<T> c) {
  const int half = c.half();
  for (std::int64_t at = global_thread() / 32; at < static_cast<std::int64_t>(c.batch) * c.rows;
       at += grid_stride() / 32) {
    const int sequence = static_cast<int>(at / c.rows);
    const std::int64_t place = gpu_min(c.first + at % c.rows, gpu_max(c.n_key, c.query_offset + c.n_query) - 1);
    const std::int64_t position = place - c.document_begin(sequence, place);
    T* const target = c.rotations + at * 2 * half;
    for_columns(half, [&](int f) {
      double cosine = c.rotation[f], sine = c.rotation[half + f];
      const double* power = c.rotation + 2 * half;
      for (std::int64_t rest = position; rest > 0; rest >>= 1, power += 2 * half) {
        if ((rest & 1) == 0) continue;
        const double last = cosine;
        cosine = gpu_fma(-sine, power[half + f], cosine * power[f]);
        sine = gpu_fma(sine, power[f], last * power[half + f]);
      }
      target[f] = static_cast<T>(cosine);
      target[half + f] = static_cast<T>(sine);
    });
  }
}

/// Reads rows as inputs of the map. Keys: also the logarithm of the weight, and the value. A masked key is a row of
/// zeros with a weight of zero.
template <class T>
__global__ void __launch_bounds__(composed_threads, 1)
    linear_attention_read_kernel(const Composed<T> c, const ComposedSide<T> side, const ComposedRows input,
                                 bool of_keys) {
  const ComposedBlock block = ComposedBlock::of(c);
  const int of_head = block.place.query_head;
  const T *center = of_keys ? c.key_center : c.query_center, *other = of_keys ? c.query_center : nullptr;
  for_rows(composed_rows, [&](int r) {
    const int i = block.row + r;
    const std::int64_t row = c.row(block.place, i);
    const bool exists = of_keys ? c.is_key(i) : c.is_query(i),
               masked = of_keys && exists && c.is_masked(block.place, i), reads = exists && !masked;
    const std::int64_t from = of_keys ? c.key_address(input, block.place, i) : c.query_address(input, block.place, i);
    const auto element = [&](int f) {
      if (!exists || f >= c.d) return T(0);
      T x = reads ? input.template read<T>(from + f) : T(0);
      const int at = of_head * c.d + f;
      if (center) x -= center[at];
      return x;
    };
    const auto scaled = [&](T x, int f) {
      if (!c.scaling || f >= c.d) return x;
      return of_keys ? x / c.scaling[of_head * c.d + f] : x * c.scaling[of_head * c.d + f];
    };
    T weight = 0;
    for_column_pairs(c.d_padded, [&](int f) {
      T x = element(f), y = element(f + 1);
      if (other) {
        if (f < c.d) weight = gpu_fma(other[of_head * c.d + f], x, weight);
        if (f + 1 < c.d) weight = gpu_fma(other[of_head * c.d + f + 1], y, weight);
      }
      x = scaled(x, f);
      y = scaled(y, f + 1);
      side.x[row * c.d_padded + f] = x;
      side.x[row * c.d_padded + f + 1] = y;
      if (side.x_parts.data) side.x_parts.put(row * c.d_padded + f, x, y);
    });
    if (!of_keys) return;
    weight = warp_sum(weight) * c.score_scale;
    bool finite = true;
    const std::int64_t from_value = c.key_address(c.value, block.place, i);
    for_column_pairs(c.v_padded, [&](int f) {
      T x = reads && f < c.d_value ? c.value.template read<T>(from_value + f) : T(0),
        y = reads && f + 1 < c.d_value ? c.value.template read<T>(from_value + f + 1) : T(0);
      // A weight of 0 times a later value that is not finite would put NaN into an earlier row. Such values are left
      // out of products, and added to the rows to which they are visible.
      if (!gpu_is_finite(x)) x = 0, finite = false;
      if (!gpu_is_finite(y)) y = 0, finite = false;
      side.vectors.put(row * c.v_padded + f, x, y);
    });
    finite = __all_sync(full_warp, finite) != 0;
    if (lane_index() != 0) return;
    side.weight[row] = masked ? c.nothing : weight;
    side.not_finite[row] = finite ? 0 : 1;
  });
}

/// Computes features from inputs, and from their projections if the map has random projections, with the operands of
/// products of pairs.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1)
    linear_attention_features_kernel(const Composed<T> c, const ComposedSide<T> side, bool of_keys) {
  FURLONG_SHARED(GpuFeatureRows<T>, map);
  const ComposedBlock block = ComposedBlock::of(c);
  if (block_thread() == 0) c.describe(block.place, map);
  __syncthreads();
  constexpr bool logarithms = form == FeatureForm::logarithms;
  for_rows(composed_rows, [&](int r) {
    const int i = block.row + r;
    const std::int64_t row = c.row(block.place, i), at = row * c.m_padded;
    T* const features = side.features + at;
    const bool has_log = of_keys ? !logarithms : c.softmax;
    map.template feature_row<form>(side.x + row * c.d_padded, of_keys, features, has_log ? side.log + row : nullptr);
    __syncwarp();
    for (int f = c.m + lane_index(); f < c.m_padded; f += 32) features[f] = 0;
    const T weight = of_keys && c.weighted ? side.weight[row] : T(0);
    T largest = c.nothing;
    if constexpr (logarithms) {
      for_columns(c.m, [&](int f) {
        const T x = features[f] + weight;
        if (weight != T(0)) features[f] = x;
        largest = gpu_max(largest, x);
      });
      largest = warp_max(largest);
      if (lane_index() == 0) side.size[row] = largest;
    } else {
      const T square = row_dot(features, features, c.m);
      if (lane_index() == 0) {
        side.size[row] = gpu_sqrt(square);
        if (of_keys && c.weighted) side.log[row] += weight;
      }
    }
    __syncwarp();
    const auto near = [&](int f) {
      if constexpr (logarithms) return f < c.m ? exponential(features[f] - largest) : T(0);
      return features[f];
    };
    if (side.near.data) for_column_pairs(c.m_padded, [&](int f) { side.near.put(at + f, near(f), near(f + 1)); });
    if (!c.rotates || !side.rotated.data) return;
    rotate_row(rotation_of(c, block.place, i), c.m, false, near, [&](int f, T x) { side.rotated.put(at + f, x); });
    for (int f = c.m + lane_index(); f < c.m_padded; f += 32) side.rotated.put(at + f, T(0));
  });
}

/// Reads g = d_output of the queries and the stored results of forward, and computes δ_i = g_i · output_i. With rms, δ
/// is zero, and g loses its component along the output.
template <class T>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_gradient_rows_kernel(const Composed<T> c) {
  const ComposedBlock block = ComposedBlock::of(c);
  for_rows(composed_rows, [&](int r) {
    const int i = block.row + r;
    const std::int64_t row = c.row(block.place, i);
    const bool exists = c.is_query(i);
    const std::int64_t at = c.query_address(c.d_output, block.place, i),
                       at_output = c.query_address(c.output, block.place, i);
    const T dot = row_sum<T>(exists ? c.d_value : 0, [&](int f) {
      return c.d_output.template read<T>(at + f) * c.output.template read<T>(at_output + f);
    });
    const T by = c.rms ? dot / static_cast<T>(c.d_value) : T(0);
    const auto element = [&](int f) {
      if (!exists || f >= c.d_value) return T(0);
      const T x = c.d_output.template read<T>(at + f);
      return c.rms ? gpu_fma(-by, c.output.template read<T>(at_output + f), x) : x;
    };
    for_column_pairs(c.v_padded, [&](int f) {
      const T x = element(f), y = element(f + 1);
      c.g[row * c.v_padded + f] = x;
      c.g[row * c.v_padded + f + 1] = y;
      c.q.vectors.put(row * c.v_padded + f, x, y);
    });
    if (lane_index() != 0) return;
    c.stabilizer[row] = exists ? *c.per_query(c.top, block.place, i) : T(0);
    c.inverse[row] = exists ? *c.per_query(c.inverse_denominator, block.place, i) : T(0);
    c.delta[row] = c.rms ? T(0) : dot;
  });
}

/// Completes d_features of a row from the products, and computes the gradient of the inputs: all of it, or for maps
/// with random projections the gradient of the projection. Run by one warp.
template <class T, FeatureForm form>
__device__ inline void finish_features(const Composed<T>& c, const GpuFeatureRows<T>& map, bool of_keys,
                                       std::int64_t row, T d_log) {
  const ComposedSide<T>& side = c.side(of_keys);
  T* const d_features = side.d_features + row * c.m_padded;
  map.template gradient_row<form>(side.x + row * c.d_padded, of_keys, side.features + row * c.m_padded, d_features,
                                  d_log, side.half_gradient + row, side.d_x + row * c.d_padded);
  if (!map.is_directed()) return;
  __syncwarp();
  for_column_pairs(c.m_padded, [&](int f) {
    const T x = f < map.n_projections ? d_features[f] : T(0), y = f + 1 < map.n_projections ? d_features[f + 1] : T(0);
    side.d_projected.put(row * c.m_padded + f, x, y);
  });
}

/// Writes d_query, or d_key and d_value, of the span's own chunks.
template <class T>
__global__ void __launch_bounds__(composed_threads, 1)
    linear_attention_write_kernel(const Composed<T> c, const ComposedSide<T> side, const ComposedRows target,
                                  bool of_keys) {
  FURLONG_SHARED(GpuFeatureRows<T>, map);
  const ComposedBlock block = ComposedBlock::of(c);
  if (block_thread() == 0) c.describe(block.place, map);
  __syncthreads();
  const int of_head = block.place.query_head;
  for_rows(composed_rows, [&](int r) {
    const int i = block.row + r;
    const std::int64_t row = c.row(block.place, i);
    // Earlier keys of a state have no gradient.
    if (!c.is_own(i) || !(of_keys ? c.is_key(i) && c.first + i >= c.query_offset : c.is_query(i))) return;
    const bool masked = of_keys && c.is_masked(block.place, i);
    if (target.data) {
      const std::int64_t at = c.query_address(target, block.place, i);
      for_columns(c.d, [&](int f) {
        const std::int64_t from = row * c.d_padded + f;
        T x = map.finished(side.x[from], side.half_gradient[row], side.d_x[from]);
        if (c.softmax) x = gpu_fma(side.d_exact[from], c.score_scale, x);
        if (c.scaling) x = of_keys ? x / c.scaling[of_head * c.d + f] : x * c.scaling[of_head * c.d + f];
        if (of_keys && c.query_center)
          x = gpu_fma(side.d_weight[row] * c.score_scale, c.query_center[of_head * c.d + f], x);
        target.template write<T>(at + f, masked ? T(0) : x);
      });
    }
    if (!of_keys || !c.d_value_rows.data) return;
    const std::int64_t at = c.query_address(c.d_value_rows, block.place, i);
    for_columns(c.d_value, [&](int f) {
      const std::int64_t from = row * c.v_padded + f;
      T x = c.paired ? side.near_vectors[from] : T(0);
      FURLONG_UNROLL
      for (int direction = 0; direction < 2; ++direction) {
        if (c.scans(true, direction) && side.factor[direction][row] != T(0))
          x = gpu_fma(side.factor[direction][row], side.through[direction][from], x);
      }
      c.d_value_rows.template write<T>(at + f, masked ? T(0) : x);
    });
  });
}

/// target [batch, n, n_kv_heads, width] = sums over each group of query heads of parts [batch, n, n_heads, width], in
/// order of the heads.
template <class T>
__global__ void __launch_bounds__(256, 1)
    linear_attention_group_kernel(const T* parts, ComposedRows target, std::int64_t rows, std::int64_t n,
                                  int n_kv_heads, int group, int width) {
  const std::int64_t row_elements = static_cast<std::int64_t>(n_kv_heads) * width;
  for (std::int64_t at = global_thread(); at < rows * row_elements; at += grid_stride()) {
    const std::int64_t row = at / row_elements, head = at % row_elements / width, f = at % width;
    const T* part = parts + (row * n_kv_heads + head) * group * width + f;
    T sum = 0;
    for (int member = 0; member < group; ++member) sum += part[static_cast<std::int64_t>(member) * width];
    target.write<T>(row / n * target.batch + row % n * target.row + head * target.head + f, sum);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
