#pragma once
// Feature maps of a tile of rows, by all threads of a block of one dimension: the GPU's side of FeatureMapFunctions
// (feature_map_cpu.h), for every map. A warp takes a row.
#include "framework/cuda/kernels/block_gemm.cuh"
#include "framework/ops/attention/feature_maps/feature_map_cuda.cuh"

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

/// One head's constants and the layout of its tiles, as FeatureTile on the CPU; no padding is needed. Lies in shared
/// memory. Maps with directions are computed in three steps, the others in the middle one: features by projection() and
/// then feature_row of every row, derivatives by slope_row of every row, back_projection() and finished() of every
/// element; between them a barrier.
template <class T>
class GpuFeatureRows {
 public:
  FeatureMap map;
  int d, m, n_directions, order;
  std::int64_t ld_x, ld_m;   // elements from one row to the next of [rows, d] and [rows, m] tiles
  const T* directions;       // ω [n_directions, d]; null without
  const T* direction_norms;  // |ω_f|² [n_directions]; oprf only
  GpuMapConstants<T> constants;

  __device__ bool is_directed() const { return directions != nullptr; }

  /// features [rows, n_directions] = x ωᵀ: without the scale, so that with 16-bit inputs every term is exact in
  /// float32.
  __device__ BlockProduct<T> projection(const T* x, int rows, T* features) const {
    return {rows, n_directions, d, by_rows(x, ld_x), by_columns(directions, d), {features, ld_m}};
  }
  /// A warp: one row of features and, where row_log is not null, its logarithm.
  __device__ void feature_row(const T* x, bool is_key, T* features, T* row_log) const {
    switch (map) {
      case FeatureMap::favor_positive:
        return directed<FeatureMap::favor_positive>(x, is_key, features, row_log);
      case FeatureMap::favor_hyperbolic:
        return directed<FeatureMap::favor_hyperbolic>(x, is_key, features, row_log);
      case FeatureMap::favor_trig:
        return directed<FeatureMap::favor_trig>(x, is_key, features, row_log);
      case FeatureMap::favor_relu:
        return directed<FeatureMap::favor_relu>(x, is_key, features, row_log);
      case FeatureMap::oprf:
        return directed<FeatureMap::oprf>(x, is_key, features, row_log);
      case FeatureMap::elu1:
        for_columns(d, [&](int f) { features[f] = GpuElementMap<FeatureMap::elu1>::feature(x[f]); });
        break;
      case FeatureMap::relu:
        for_columns(d, [&](int f) { features[f] = GpuElementMap<FeatureMap::relu>::feature(x[f]); });
        break;
      case FeatureMap::exp:
        for_columns(d, [&](int f) { features[f] = GpuElementMap<FeatureMap::exp>::feature(x[f]); });
        break;
      case FeatureMap::hedgehog:
        for (int half = 0; half < 2; ++half) hedgehog(x, half == 0 ? T(1) : T(-1), features + half * d);
        break;
      case FeatureMap::cosine:
        cosine(x, features);
        break;
      case FeatureMap::taylor:
      case FeatureMap::limit:
        polynomial(x, features);
        break;
    }
    if (row_log && lane_index() == 0) *row_log = 0;
  }

  /// A warp: the row's d_x [d] from d_features [m], which are used up, and d_row_log. Of maps with directions the first
  /// part, d_features becoming the slopes of the projection and half_slope that of |x'|²/2.
  __device__ void slope_row(const T* x, bool is_key, const T* features, T* d_features, T d_row_log, T* half_slope,
                            T* d_x) const {
    switch (map) {
      case FeatureMap::favor_positive:
        return directed_slopes<FeatureMap::favor_positive>(is_key, features, d_features, d_row_log, half_slope);
      case FeatureMap::favor_hyperbolic:
        return directed_slopes<FeatureMap::favor_hyperbolic>(is_key, features, d_features, d_row_log, half_slope);
      case FeatureMap::favor_trig:
        return directed_slopes<FeatureMap::favor_trig>(is_key, features, d_features, d_row_log, half_slope);
      case FeatureMap::favor_relu:
        return directed_slopes<FeatureMap::favor_relu>(is_key, features, d_features, d_row_log, half_slope);
      case FeatureMap::oprf:
        return directed_slopes<FeatureMap::oprf>(is_key, features, d_features, d_row_log, half_slope);
      case FeatureMap::elu1:
        for_columns(d, [&](int f) { d_x[f] = GpuElementMap<FeatureMap::elu1>::backward(x[f], d_features[f]); });
        break;
      case FeatureMap::relu:
        for_columns(d, [&](int f) { d_x[f] = GpuElementMap<FeatureMap::relu>::backward(x[f], d_features[f]); });
        break;
      case FeatureMap::exp:
        for_columns(d, [&](int f) { d_x[f] = GpuElementMap<FeatureMap::exp>::backward(x[f], d_features[f]); });
        break;
      case FeatureMap::hedgehog:
        hedgehog_backward(features, d_features, d_x);
        break;
      case FeatureMap::cosine:
        cosine_backward(x, features + 1, d_features + 1, d_x);
        break;
      case FeatureMap::taylor:
      case FeatureMap::limit:
        polynomial_backward(x, features, d_features, d_x);
        break;
    }
  }
  /// d_x [rows, d] = d_features ω
  __device__ BlockProduct<T> back_projection(const T* d_features, int rows, T* d_x) const {
    return {rows, d, n_directions, by_rows(d_features, ld_m), by_rows(directions, d), {d_x, ld_x}};
  }
  /// The derivative of functions of u and |x'|²/2, where the map has directions; otherwise d_x as it is.
  __device__ T finished(T x, T half_slope, T d_x) const {
    return is_directed() ? gpu_fma(x, half_slope * constants.scale * constants.scale, d_x * constants.factor) : d_x;
  }

 private:
  // ---- maps with directions ----

  template <FeatureMap directed_map>
  __device__ void directed(const T* x, bool is_key, T* features, T* row_log) const {
    using Map = GpuDirectionMap<directed_map>;
    constexpr bool both = Map::features_a_direction == 2, logarithms = Map::form == FeatureForm::logarithms;
    const T half = row_log || (logarithms && is_key) ? row_dot(x, x, d) * constants.scale * constants.scale / 2 : T(0);
    const T shift = is_key ? half : T(0);
    for_columns(n_directions, [&](int f) {
      T first = 0, second = 0;
      Map::features(constants, features[f], directed_map == FeatureMap::oprf ? direction_norms[f] : T(0), shift, first,
                    second);
      features[f] = first;
      if (both) features[n_directions + f] = second;
    });
    if (row_log && lane_index() == 0) *row_log = row_log_of(directed_map, constants, is_key, half);
  }
  template <FeatureMap directed_map>
  __device__ void directed_slopes(bool is_key, const T* features, T* d_features, T d_row_log, T* half_slope) const {
    using Map = GpuDirectionMap<directed_map>;
    constexpr bool both = Map::features_a_direction == 2;
    const T sum = row_sum<T>(n_directions, [&](int f) {
      const T d_first = d_features[f], d_second = both ? d_features[n_directions + f] : T(0);
      d_features[f] =
          Map::backward(constants, features[f], both ? features[n_directions + f] : T(0), d_first, d_second);
      return d_first + d_second;
    });
    if (lane_index() == 0) *half_slope = d_half_of(directed_map, is_key, sum, d_row_log);
  }

  // ---- hedgehog: log softmax(± x) ----

  __device__ void hedgehog(const T* row, T sign, T* target) const {
    T largest = gpu_lowest<T>();
    for_columns(d, [&](int f) { largest = gpu_max(largest, sign * row[f]); });
    largest = warp_max(largest);
    const T total = largest + gpu_log(row_sum<T>(d, [&](int f) { return gpu_exp(sign * row[f] - largest); }));
    for_columns(d, [&](int f) { target[f] = sign * row[f] - total; });
  }
  /// For each half ± (g - softmax Σ g).
  __device__ void hedgehog_backward(const T* phi, const T* g, T* target) const {
    const T total_plus = row_sum<T>(d, [&](int f) { return g[f]; }),
            total_minus = row_sum<T>(d, [&](int f) { return g[d + f]; });
    for_columns(d, [&](int f) {
      const T plus = gpu_fma(-gpu_exp(phi[f]), total_plus, g[f]),
              minus = gpu_fma(-gpu_exp(phi[d + f]), total_minus, g[d + f]);
      target[f] = plus - minus;
    });
  }

  // ---- cosine: (1, x / |x|) ----

  struct Norm {
    T largest, rest;  // |x| is their product, which may leave the range of T where neither factor does
  };
  /// Of a row of zeros: {1, 0}. With a NaN in the row, `rest` is one.
  __device__ Norm norm_of(const T* row) const {
    T largest = 0;
    for_columns(d, [&](int f) { largest = gpu_max(largest, gpu_abs(row[f])); });
    largest = warp_max(largest);
    if (!(largest > T(0))) largest = 1;
    return {largest, gpu_sqrt(row_sum<T>(d, [&](int f) { return row[f] / largest * (row[f] / largest); }))};
  }
  __device__ void cosine(const T* row, T* target) const {
    const Norm norm = norm_of(row);
    const T inverse = norm.rest == T(0) ? T(0) : T(1) / norm.rest;
    for_columns(d, [&](int f) { target[1 + f] = row[f] / norm.largest * inverse; });
    if (lane_index() == 0) target[0] = 1;
  }
  /// d_x = (g - (g·x̂) x̂) / |x|, and zero for a row of zeros, where there is no derivative.
  __device__ void cosine_backward(const T* row, const T* unit, const T* g, T* target) const {
    const Norm norm = norm_of(row);
    const T inverse = norm.rest == T(0) ? T(0) : T(1) / norm.rest, along = row_dot(g, unit, d);
    for_columns(d, [&](int f) { target[f] = gpu_fma(-along, unit[f], g[f]) * inverse / norm.largest; });
  }

  // ---- taylor and limit: Σ_r c_r (q'·k')^r, every monomial once, in the order of polynomial-inl.h ----

  /// Monomials of degree r in v variables.
  __device__ static int monomials(int v, int r) {
    int count = 1;
    for (int i = 0; i < r; ++i) count = count * (v + i) / (i + 1);
    return count;
  }
  /// From a feature of degree r - 1 whose index i occurs a times, times x_i, to one of degree r: c_r / c_(r-1) is 1 / r
  /// for taylor, (order - r + 1) / (r order) for limit.
  __device__ T factor(int r, int a) const {
    const T ratio = map == FeatureMap::taylor ? T(1) : static_cast<T>(order - r + 1) / static_cast<T>(order);
    return constants.scale * gpu_sqrt(ratio / static_cast<T>(a + 1));
  }
  /// Calls run(i, factor, source, target, n) for the runs of degree r, whose sources begin at offset `source` of the
  /// row.
  template <class Run>
  __device__ void for_runs(int r, int source, const Run& run) const {
    int target = source + monomials(d, r - 1);
    for (int i = 0; i < d; ++i) {
      int from = source;
      for (int a = r - 1; a >= 0; --a) {
        if (a == 0) source = from;  // where the end with all indices >= i + 1 begins
        const int n = monomials(d - i - 1, r - 1 - a);
        run(i, factor(r, a), from, target, n);
        from += n;
        target += n;
      }
    }
  }
  __device__ int offset(int r) const {
    int at = 0;
    for (int lower = 0; lower < r; ++lower) at += monomials(d, lower);
    return at;
  }
  __device__ void polynomial(const T* row, T* target) const {
    const T first = factor(1, 0);
    if (lane_index() == 0) target[0] = 1;
    for_columns(d, [&](int c) { target[1 + c] = row[c] * first; });
    for (int r = 2; r <= order; ++r) {
      __syncwarp();
      for_runs(r, offset(r - 1), [&](int c, T coefficient, int from, int to, int n) {
        const T weight = row[c] * coefficient;
        for_columns(n, [&](int f) { target[to + f] = target[from + f] * weight; });
      });
    }
  }
  /// From the highest degree down, since d_features of a degree gather what came through higher ones.
  __device__ void polynomial_backward(const T* row, const T* phi, T* g, T* target) const {
    for_columns(d, [&](int c) { target[c] = 0; });
    __syncwarp();
    for (int r = order; r >= 2; --r) {
      for_runs(r, offset(r - 1), [&](int c, T coefficient, int from, int to, int n) {
        const T weight = row[c] * coefficient;
        T sum = 0;
        for_columns(n, [&](int f) {
          const T d_feature = g[to + f];
          sum = gpu_fma(d_feature, phi[from + f], sum);
          g[from + f] = gpu_fma(d_feature, weight, g[from + f]);
        });
        sum = warp_sum(sum);
        if (lane_index() == 0) target[c] = gpu_fma(coefficient, sum, target[c]);
        __syncwarp();
      });
    }
    const T first = factor(1, 0);
    for_columns(d, [&](int c) { target[c] = gpu_fma(g[1 + c], first, target[c]); });
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
