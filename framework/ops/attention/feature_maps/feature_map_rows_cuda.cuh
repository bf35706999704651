#pragma once
// Feature maps of a tile of rows, by all threads of a block of one dimension: the GPU's side of FeatureMapFunctions
// (feature_map_cpu.h), by the arithmetic of maps/NAME-inl.h. A warp takes a row. For kernels only.
#include "framework/cuda/kernels/block_gemm.cuh"
#include "framework/cuda/kernels/cos_sin.h"
#include "framework/cuda/kernels/lane_value.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

#define FURLONG_MAPS_ON_GPU
#define FURLONG_LANE_FUNCTION __device__ __forceinline__

namespace furlong::ops {
namespace FURLONG_GPU {

/// Calls body(row) with rows [0, rows), a warp for each.
template <class Body>
__device__ inline void for_rows(int rows, const Body& body) {
  for (int i = warp_index(); i < rows; i += warps_in_block()) body(i);
}
/// Calls body(column) with the lane's columns of [0, width).
template <class Body>
__device__ inline void for_columns(int width, const Body& body) {
  for (int j = lane_index(); j < width; j += 32) body(j);
}
/// The sum over columns of term(column), in every lane.
template <class T, class Term>
__device__ inline T row_sum(int width, const Term& term) {
  T sum = 0;
  for_columns(width, [&](int j) { sum += term(j); });
  return warp_sum(sum);
}
/// a·b
template <class T>
__device__ inline T row_dot(const T* a, const T* b, int width) {
  T sum = 0;
  for_columns(width, [&](int j) { sum = gpu_fma(a[j], b[j], sum); });
  return warp_sum(sum);
}

#include "framework/ops/attention/feature_maps/feature_map-inl.h"

/// One head's numbers. T is float or double.
template <class T>
struct GpuMapConstants {
  T factor;          // of u
  T scale;           // of each of q and k: d^(-1/4)
  T oprf_a;          // A; 0 of maps without
  T kernel_epsilon;  // favor_relu
  T query_constant;  // of the query's row logarithm: -log m and the like
};
/// Of a head of width d, whose kernel is the mean over `mean_over` features; oprf_a is its A (0 elsewhere). In double
/// where that is free of cost: once a block.
template <class T>
__device__ inline GpuMapConstants<T> gpu_map_constants(const FeatureMapOptions& options, std::int64_t d,
                                                       std::int64_t mean_over, T oprf_a) {
  const T scale = static_cast<T>(1.0 / std::sqrt(std::sqrt(static_cast<double>(d))));
  return {projection_factor(scale, oprf_a), scale, oprf_a, static_cast<T>(options.kernel_epsilon),
          query_constant(d, mean_over, oprf_a)};
}
/// What the kernel of a map is the mean over.
inline int features_in_mean(const FeatureMapInfo& info, std::int64_t m, std::int64_t n_directions) {
  return static_cast<int>(info.mean_over_directions ? n_directions : m);
}

/// One head's constants and the layout of its tiles, as FeatureTile on the CPU; no padding is needed. Lies in shared
/// memory. Maps with random projections are computed in three steps, the others in the middle one: features by
/// projection() and then feature_row of every row, derivatives by slope_row of every row, back_projection() and
/// finished() of every element; between them a barrier.
template <class T>
class GpuFeatureRows {
 public:
  FeatureMap map;
  int d, m, n_directions, order;
  std::int64_t ld_x, ld_m;   // elements from one row to the next of [rows, d] and [rows, m] tiles
  const T* directions;       // ω [n_directions, d]; null without
  const T* direction_norms;  // |ω_f|² [n_directions]; where the map needs_oprf_a
  GpuMapConstants<T> constants;

  __device__ bool is_directed() const { return directions != nullptr; }

  /// features [rows, n_directions] = x ωᵀ: without the scale, so that with 16-bit inputs every term is exact in
  /// float32.
  __device__ BlockProduct<T> projection(const T* x, int rows, T* features) const {
    return {rows, n_directions, d, by_rows(x, ld_x), by_columns(directions, d), {features, ld_m}};
  }
  /// A warp: one row of features and, where row_log is not null, its logarithm. `form` is the map's.
  template <FeatureForm form>
  __device__ void feature_row(const T* x, bool is_key, T* features, T* row_log) const {
    with_feature_map(map, [&](auto chosen) {
      using M = decltype(chosen);
      if constexpr (M::properties.form != form)
        return;
      else if constexpr (M::kind == MapKind::projections)
        return projected<M>(x, is_key, features, row_log);
      else if constexpr (M::kind == MapKind::entries) {
        for_columns(d, [&](int f) { features[f] = M::feature(Lane(x[f])).v; });
      } else {
        M::features(*this, x, features);
      }
      if (row_log && lane_index() == 0) *row_log = 0;
    });
  }

  /// A warp: the row's d_x [d] from d_features [m], which are used up, and d_row_log. Of maps with random projections
  /// the first part, d_features becoming the slopes of the projection and half_slope that of |x'|²/2.
  template <FeatureForm form>
  __device__ void slope_row(const T* x, bool is_key, const T* features, T* d_features, T d_row_log, T* half_slope,
                            T* d_x) const {
    with_feature_map(map, [&](auto chosen) {
      using M = decltype(chosen);
      if constexpr (M::properties.form != form)
        return;
      else if constexpr (M::kind == MapKind::projections)
        projected_slopes<M>(is_key, features, d_features, d_row_log, half_slope);
      else if constexpr (M::kind == MapKind::entries)
        for_columns(d, [&](int f) { d_x[f] = M::backward(Lane(x[f]), Lane(d_features[f])).v; });
      else
        M::backward(*this, x, features, d_features, d_x);
    });
  }
  /// d_x [rows, d] = d_features ω
  __device__ BlockProduct<T> back_projection(const T* d_features, int rows, T* d_x) const {
    return {rows, d, n_directions, by_rows(d_features, ld_m), by_rows(directions, d), {d_x, ld_x}};
  }
  /// The derivative of functions of u and |x'|²/2, where the map has random projections; otherwise d_x as it is.
  __device__ T finished(T x, T half_slope, T d_x) const {
    return is_directed() ? gpu_fma(x, half_slope * constants.scale * constants.scale, d_x * constants.factor) : d_x;
  }

 private:
  using Lane = LaneValue<T>;

  __device__ MapNumbers<Lane> numbers() const {
    return {Lane(constants.factor), Lane(constants.oprf_a), Lane(constants.kernel_epsilon)};
  }
  template <class M>
  __device__ void projected(const T* x, bool is_key, T* features, T* row_log) const {
    constexpr bool two = M::properties.features_a_direction == 2,
                   shifts_keys = M::half_square == HalfSquare::in_features;
    const bool needs_half = M::half_square != HalfSquare::unused && (row_log || (shifts_keys && is_key));
    const T half = needs_half ? row_dot(x, x, d) * constants.scale * constants.scale / 2 : T(0);
    const Lane shift(shifts_keys && is_key ? half : T(0));
    for_columns(n_directions, [&](int f) {
      const Lane u(features[f]);
      if constexpr (two) {
        const Pair<Lane> both = M::features(numbers(), u, shift);
        features[f] = both.first.v;
        features[n_directions + f] = both.second.v;
      } else {
        const Lane square(M::properties.needs_oprf_a ? direction_norms[f] : T(0));
        features[f] = M::feature(numbers(), u, square, shift).v;
      }
    });
    if (row_log && lane_index() == 0) *row_log = row_log_of<M>(constants.query_constant, is_key, half);
  }
  template <class M>
  __device__ void projected_slopes(bool is_key, const T* features, T* d_features, T d_row_log, T* half_slope) const {
    const T sum = row_sum<T>(n_directions, [&](int f) {
      const T d_first = d_features[f];
      if constexpr (M::properties.features_a_direction == 2) {
        const T d_second = d_features[n_directions + f];
        d_features[f] = M::backward(Pair<Lane>{Lane(features[f]), Lane(features[n_directions + f])},
                                    Pair<Lane>{Lane(d_first), Lane(d_second)})
                            .v;
        return d_first + d_second;
      } else {
        const MapNumbers<Lane> c = numbers();
        if constexpr (requires { M::backward(c, c.factor, c.factor); })
          d_features[f] = M::backward(c, Lane(features[f]), Lane(d_first)).v;
        return d_first;
      }
    });
    if (lane_index() == 0) *half_slope = d_half_of<M>(is_key, sum, d_row_log);
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
