#pragma once
// Feature maps of a tile of rows, computed by all threads of a one-dimensional block: FeatureMapFunctions
// (feature_map_cpu.h) on the GPU, with the arithmetic of maps/NAME-inl.h. One warp computes one row. For kernels only.
#include "framework/cuda/kernels/block_gemm.cuh"
#include "framework/cuda/kernels/cos_sin.h"
#include "framework/cuda/kernels/lane_value.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

#define FURLONG_MAPS_ON_GPU
#define FURLONG_LANE_FUNCTION __device__ __forceinline__

namespace furlong::ops {
namespace FURLONG_GPU {

/// Calls body(row) for rows [0, rows), one warp per row.
template <class Body>
__device__ inline void for_rows(int rows, const Body& body) {
  for (int i = warp_index(); i < rows; i += warps_in_block()) body(i);
}
/// Calls body(column) for this lane's columns of [0, width).
template <class Body>
__device__ inline void for_columns(int width, const Body& body) {
  for (int j = lane_index(); j < width; j += 32) body(j);
}
/// Returns the sum of term(column) over all columns, in every lane.
template <class T, class Term>
__device__ inline T row_sum(int width, const Term& term) {
  T sum = 0;
  for_columns(width, [&](int j) { sum += term(j); });
  return warp_sum(sum);
}
/// Returns a·b of two rows of `width` entries, in every lane.
template <class T>
__device__ inline T row_dot(const T* a, const T* b, int width) {
  T sum = 0;
  for_columns(width, [&](int j) { sum = gpu_fma(a[j], b[j], sum); });
  return warp_sum(sum);
}

#include "framework/ops/attention/feature_maps/feature_map-inl.h"

/// Constants of one head. T is float or double.
template <class T>
struct GpuMapConstants {
  T factor;          // factor of u
  T scale;           // applied to both q and k: d^(-1/4)
  T oprf_a;          // A; 0 for maps without it
  T kernel_epsilon;  // favor_relu
  T query_constant;  // constant part of the query's row logarithm, such as -log m
};
/// Returns the constants of a head of width d. The kernel is the mean over `mean_over` features; oprf_a is the head's A
/// (0 for other maps). Computed in double precision, because it runs once per block.
template <class T>
__device__ inline GpuMapConstants<T> gpu_map_constants(const FeatureMapOptions& options, std::int64_t d,
                                                       std::int64_t mean_over, T oprf_a) {
  const T scale = static_cast<T>(1.0 / std::sqrt(std::sqrt(static_cast<double>(d))));
  return {projection_factor(scale, oprf_a), scale, oprf_a, static_cast<T>(options.kernel_epsilon),
          query_constant(d, mean_over, oprf_a)};
}
/// Returns the number of features or projections that the map's kernel is the mean over.
inline int features_in_mean(const FeatureMapInfo& info, std::int64_t m, std::int64_t n_projections) {
  return static_cast<int>(info.mean_over_projections ? n_projections : m);
}

/// One head's constants and the layout of its tiles, like FeatureTile on the CPU but without padding. Stored in shared
/// memory. All functions overwrite their results.
///
/// Forward:   1. projection(), for the whole tile   2. feature_row(), for each row
/// Backward:  1. gradient_row(), for each row   2. back_projection(), for the whole tile   3. finished(), per element
/// Maps without random projections use only feature_row() and gradient_row(). A barrier separates the steps.
template <class T>
class GpuFeatureRows {
 public:
  FeatureMap map;
  int d, m, n_projections, order;
  std::int64_t ld_x, ld_m;     // row strides of [rows, d] and [rows, m] tiles, in elements
  const T* random_projection;  // ω [n_projections, d]; null if the map has no random projections
  const T* direction_norms;    // |ω_f|² [n_projections], if the map needs_oprf_a
  GpuMapConstants<T> constants;

  __device__ bool is_directed() const { return random_projection != nullptr; }

  /// Returns the product features [rows, n_projections] = x ωᵀ. x [rows, d] is not scaled, so that with 16-bit inputs
  /// every term is exact in float32.
  __device__ BlockProduct<T> projection(const T* x, int rows, T* features) const {
    return {rows, n_projections, d, by_rows(x, ld_x), by_columns(random_projection, d), {features, ld_m}};
  }
  /// Run by one warp: computes the features [m] of row x [d], in place of u if the map has random projections, and the
  /// row logarithm if row_log is not null. `form` is the map's; for a map of another form it does nothing.
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

  /// Run by one warp: computes the row's d_x [d] from the gradients d_features [m], used as scratch, and d_row_log. For
  /// maps with random projections it leaves d_x to the next steps: the first n_projections entries of d_features become
  /// the gradient of factor · u, and half_gradient that of |x'|²/2.
  template <FeatureForm form>
  __device__ void gradient_row(const T* x, bool is_key, const T* features, T* d_features, T d_row_log, T* half_gradient,
                               T* d_x) const {
    with_feature_map(map, [&](auto chosen) {
      using M = decltype(chosen);
      if constexpr (M::properties.form != form)
        return;
      else if constexpr (M::kind == MapKind::projections)
        projected_gradients<M>(is_key, features, d_features, d_row_log, half_gradient);
      else if constexpr (M::kind == MapKind::entries)
        for_columns(d, [&](int f) { d_x[f] = M::backward(Lane(x[f]), Lane(d_features[f])).v; });
      else
        M::backward(*this, x, features, d_features, d_x);
    });
  }
  /// Returns the product d_x [rows, d] = d_features [rows, n_projections] ω.
  __device__ BlockProduct<T> back_projection(const T* d_features, int rows, T* d_x) const {
    return {rows, d, n_projections, by_rows(d_features, ld_m), by_rows(random_projection, d), {d_x, ld_x}};
  }
  /// Returns one element of the gradient of x: from x, the row's half_gradient and the element of back_projection() if
  /// the map has random projections, otherwise d_x unchanged.
  __device__ T finished(T x, T half_gradient, T d_x) const {
    return is_directed() ? gpu_fma(x, half_gradient * constants.scale * constants.scale, d_x * constants.factor) : d_x;
  }

 private:
  using Lane = LaneValue<T>;

  __device__ MapNumbers<Lane> numbers() const {
    return {Lane(constants.factor), Lane(constants.oprf_a), Lane(constants.kernel_epsilon)};
  }
  template <class M>
  __device__ void projected(const T* x, bool is_key, T* features, T* row_log) const {
    constexpr bool two = M::properties.features_per_projection == 2,
                   shifts_keys = M::half_square == HalfSquare::in_features;
    const bool needs_half = M::half_square != HalfSquare::unused && (row_log || (shifts_keys && is_key));
    const T half = needs_half ? row_dot(x, x, d) * constants.scale * constants.scale / 2 : T(0);
    const Lane shift(shifts_keys && is_key ? half : T(0));
    for_columns(n_projections, [&](int f) {
      const Lane u(features[f]);
      if constexpr (two) {
        const Pair<Lane> both = M::features(numbers(), u, shift);
        features[f] = both.first.v;
        features[n_projections + f] = both.second.v;
      } else {
        const Lane square(M::properties.needs_oprf_a ? direction_norms[f] : T(0));
        features[f] = M::feature(numbers(), u, square, shift).v;
      }
    });
    if (row_log && lane_index() == 0) *row_log = row_log_of<M>(constants.query_constant, is_key, half);
  }
  template <class M>
  __device__ void projected_gradients(bool is_key, const T* features, T* d_features, T d_row_log,
                                      T* half_gradient) const {
    const T sum = row_sum<T>(n_projections, [&](int f) {
      const T d_first = d_features[f];
      if constexpr (M::properties.features_per_projection == 2) {
        const T d_second = d_features[n_projections + f];
        d_features[f] = M::backward(Pair<Lane>{Lane(features[f]), Lane(features[n_projections + f])},
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
    if (lane_index() == 0) *half_gradient = d_half_of<M>(is_key, sum, d_row_log);
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
