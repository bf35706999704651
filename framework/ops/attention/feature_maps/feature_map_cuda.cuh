#pragma once
// The arithmetic of feature maps on GPUs, number by number: what NAME_cpu.cpp beside this file says of rows. For
// kernels only.
//
// Maps with directions are functions of u = ω·x (without the scale, so that with 16-bit x every term is exact in
// float32) and of half = |x'|²/2; element-wise maps are functions of x; the rest (taylor, limit, cosine, hedgehog) need
// whole rows (feature_map_rows_cuda.cuh). Everything here follows FeatureMapFunctions (feature_map_cpu.h): `logarithms`
// or `values`, row logarithms, and derivatives given what reaches the features.
#include "framework/cuda/kernels/kernel.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// One head's numbers. T is float or double.
template <class T>
struct GpuMapConstants {
  T factor;          // of u: scale, and for oprf √(1-4A) beside it
  T scale;           // of each of q and k: d^(-1/4)
  T oprf_a;          // A
  T kernel_epsilon;  // favor_relu
  T query_constant;  // of the query's row logarithm: -log m and the like
};

__device__ inline float gpu_rint(float x) { return ::rintf(x); }
__device__ inline double gpu_rint(double x) { return ::rint(x); }

// ---- elementary functions that the device's library has only with local memory, or less exactly ----

/// cos x and sin x. float: within 2.5 units of 2^-24 up to |x| = 39000, where x itself has long been rounded to steps
/// of 0.004; larger arguments are held there. double: within some 2^-52 up to |x| = 2^30, and held there. NaN where x
/// is no finite number.
template <class T>
__device__ inline void cos_sin(T x, T& cosine, T& sine) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T limit = single ? T(39000) : T(1073741824);
  const bool finite = gpu_is_finite(x);
  const T inside = x > limit ? limit : x < -limit ? -limit : x;
  const T turns = gpu_rint(inside * T(0.63661977236758134308));
  // π/2 in parts (Cody & Waite 1980): the first product and difference are exact with a fused multiply-add.
  T r = gpu_fma(-turns, single ? T(1.57079637050628662109375) : T(1.57079632679489655800), inside);
  r = gpu_fma(-turns, single ? T(-4.37113900018624283e-8) : T(6.12323399573676603587e-17), r);
  r = gpu_fma(-turns, single ? T(-1.71512451e-15) : T(-1.49738490485919778e-33), r);
  const T square = r * r;
  T s, c;  // Taylor series: |r| is at most π/4
  if constexpr (single) {
    s = gpu_fma(square, T(2.75573192239858906526e-6), T(-1.98412698412698412698e-4));
    s = gpu_fma(square, s, T(8.33333333333333333333e-3));
    s = gpu_fma(square, s, T(-1.66666666666666666667e-1));
    c = gpu_fma(square, T(-2.75573192239858906526e-7), T(2.48015873015873015873e-5));
    c = gpu_fma(square, c, T(-1.38888888888888888889e-3));
    c = gpu_fma(square, c, T(4.16666666666666666667e-2));
  } else {
    s = gpu_fma(square, T(2.81145725434552075980e-15), T(-7.64716373181981647590e-13));
    s = gpu_fma(square, s, T(1.60590438368216145994e-10));
    s = gpu_fma(square, s, T(-2.50521083854417187751e-8));
    s = gpu_fma(square, s, T(2.75573192239858906526e-6));
    s = gpu_fma(square, s, T(-1.98412698412698412698e-4));
    s = gpu_fma(square, s, T(8.33333333333333333333e-3));
    s = gpu_fma(square, s, T(-1.66666666666666666667e-1));
    c = gpu_fma(square, T(-1.56192069685862264622e-16), T(4.77947733238738529744e-14));
    c = gpu_fma(square, c, T(-1.14707455977297247139e-11));
    c = gpu_fma(square, c, T(2.08767569878680989792e-9));
    c = gpu_fma(square, c, T(-2.75573192239858906526e-7));
    c = gpu_fma(square, c, T(2.48015873015873015873e-5));
    c = gpu_fma(square, c, T(-1.38888888888888888889e-3));
    c = gpu_fma(square, c, T(4.16666666666666666667e-2));
  }
  s = gpu_fma(r * square, s, r);
  c = gpu_fma(square * square, c, gpu_fma(T(-0.5), square, T(1)));
  const int quarter = static_cast<int>(turns) & 3;  // of at most 7e8 turns
  const T swapped_c = quarter & 1 ? s : c, swapped_s = quarter & 1 ? c : s;
  cosine = finite ? (quarter == 1 || quarter == 2 ? -swapped_c : swapped_c) : x - x;
  sine = finite ? (quarter >= 2 ? -swapped_s : swapped_s) : x - x;
}

// ---- maps with directions ----

/// `shift` is half for keys and 0 for queries in maps that estimate softmax by logarithms, whose queries leave it to
/// the row's logarithm. feature f of direction f goes to first, feature n_directions + f, where a direction has two, to
/// second.
template <FeatureMap map>
struct GpuDirectionMap;

template <>
struct GpuDirectionMap<FeatureMap::favor_positive> {
  static constexpr FeatureForm form = FeatureForm::logarithms;
  static constexpr int features_a_direction = 1;
  template <class T>
  __device__ static void features(const GpuMapConstants<T>& c, T u, T /*square_of_direction*/, T shift, T& first,
                                  T& /*second*/) {
    first = gpu_fma(u, c.factor, -shift);
  }
  /// ∂ loss / ∂ (factor · u) from what reaches the features, of which first and second are the values.
  template <class T>
  __device__ static T backward(const GpuMapConstants<T>& /*c*/, T /*first*/, T /*second*/, T d_first, T /*d_second*/) {
    return d_first;
  }
};

template <>
struct GpuDirectionMap<FeatureMap::oprf> {
  static constexpr FeatureForm form = FeatureForm::logarithms;
  static constexpr int features_a_direction = 1;
  template <class T>
  __device__ static void features(const GpuMapConstants<T>& c, T u, T square_of_direction, T shift, T& first,
                                  T& /*second*/) {
    first = gpu_fma(u, c.factor, gpu_fma(square_of_direction, c.oprf_a, -shift));
  }
  template <class T>
  __device__ static T backward(const GpuMapConstants<T>& /*c*/, T /*first*/, T /*second*/, T d_first, T /*d_second*/) {
    return d_first;
  }
};

template <>
struct GpuDirectionMap<FeatureMap::favor_hyperbolic> {
  static constexpr FeatureForm form = FeatureForm::logarithms;
  static constexpr int features_a_direction = 2;
  template <class T>
  __device__ static void features(const GpuMapConstants<T>& c, T u, T /*square_of_direction*/, T shift, T& first,
                                  T& second) {
    first = gpu_fma(u, c.factor, -shift);
    second = gpu_fma(-u, c.factor, -shift);
  }
  template <class T>
  __device__ static T backward(const GpuMapConstants<T>& /*c*/, T /*first*/, T /*second*/, T d_first, T d_second) {
    return d_first - d_second;
  }
};

template <>
struct GpuDirectionMap<FeatureMap::favor_trig> {
  static constexpr FeatureForm form = FeatureForm::values;
  static constexpr int features_a_direction = 2;
  template <class T>
  __device__ static void features(const GpuMapConstants<T>& c, T u, T /*square_of_direction*/, T /*shift*/, T& first,
                                  T& second) {
    cos_sin(u * c.factor, first, second);
  }
  /// ∂cos/∂u = -sin and ∂sin/∂u = cos, both of which the features have.
  template <class T>
  __device__ static T backward(const GpuMapConstants<T>& /*c*/, T first, T second, T d_first, T d_second) {
    return gpu_fma(first, d_second, -(second * d_first));
  }
};

template <>
struct GpuDirectionMap<FeatureMap::favor_relu> {
  static constexpr FeatureForm form = FeatureForm::values;
  static constexpr int features_a_direction = 1;
  template <class T>
  __device__ static void features(const GpuMapConstants<T>& c, T u, T /*square_of_direction*/, T /*shift*/, T& first,
                                  T& /*second*/) {
    first = gpu_fma(u < T(0) ? T(0) : u, c.factor, c.kernel_epsilon);  // a NaN stays one
  }
  /// u was positive where the feature is more than the constant: below the rounding of their sum, the sign of u is
  /// itself only rounding.
  template <class T>
  __device__ static T backward(const GpuMapConstants<T>& c, T first, T /*second*/, T d_first, T /*d_second*/) {
    return first <= c.kernel_epsilon ? T(0) : d_first;
  }
};

// ---- element-wise maps: feature f of x_f ----

template <FeatureMap map>
struct GpuElementMap;

template <>
struct GpuElementMap<FeatureMap::elu1> {
  static constexpr FeatureForm form = FeatureForm::logarithms;
  template <class T>
  __device__ static T feature(T x) {
    return x > T(0) ? gpu_log1p(x) : x;
  }
  /// ∂ loss / ∂ x_f from ∂ loss / ∂ feature.
  template <class T>
  __device__ static T backward(T x, T d_feature) {
    return d_feature / (T(1) + (x < T(0) ? T(0) : x));
  }
};

template <>
struct GpuElementMap<FeatureMap::relu> {
  static constexpr FeatureForm form = FeatureForm::values;
  template <class T>
  __device__ static T feature(T x) {
    return x < T(0) ? T(0) : x;  // a NaN stays one
  }
  template <class T>
  __device__ static T backward(T x, T d_feature) {
    return x <= T(0) ? T(0) : d_feature;
  }
};

template <>
struct GpuElementMap<FeatureMap::exp> {
  static constexpr FeatureForm form = FeatureForm::logarithms;
  template <class T>
  __device__ static T feature(T x) {
    return x;
  }
  template <class T>
  __device__ static T backward(T /*x*/, T d_feature) {
    return d_feature;
  }
};

// ---- row logarithms ----

/// Of a row with half = |x'|²/2 (ignored by maps that leave nothing out). `logarithms_of_softmax`: favor_positive,
/// favor_hyperbolic, oprf.
template <class T>
__device__ inline T row_log_of(FeatureMap map, const GpuMapConstants<T>& c, bool is_key, T half) {
  switch (map) {
    case FeatureMap::favor_positive:
    case FeatureMap::favor_hyperbolic:
    case FeatureMap::oprf:
      return is_key ? T(0) : c.query_constant - half;
    case FeatureMap::favor_trig:
      return half + (is_key ? T(0) : c.query_constant);
    case FeatureMap::favor_relu:
      return is_key ? T(0) : c.query_constant;
    default:
      return T(0);
  }
}
/// ∂ loss / ∂ half: from the sum over what reaches a key's log features, and from what reaches the row's logarithm.
template <class T>
__device__ inline T d_half_of(FeatureMap map, bool is_key, T sum_of_d_features, T d_row_log) {
  switch (map) {
    case FeatureMap::favor_positive:
    case FeatureMap::favor_hyperbolic:
    case FeatureMap::oprf:
      return is_key ? -sum_of_d_features : -d_row_log;
    case FeatureMap::favor_trig:
      return d_row_log;
    default:
      return T(0);
  }
}

/// The constants of one head of width d with m features from n_directions; oprf_a is its A (0 elsewhere). In double
/// where that is free of cost: once a block.
template <class T>
__host__ __device__ inline GpuMapConstants<T> gpu_map_constants(FeatureMap map, const FeatureMapOptions& options,
                                                                std::int64_t d, std::int64_t m,
                                                                std::int64_t n_directions, T oprf_a) {
  const double scale = 1.0 / std::sqrt(std::sqrt(static_cast<double>(d))), a = static_cast<double>(oprf_a);
  GpuMapConstants<T> c{static_cast<T>(scale), static_cast<T>(scale), oprf_a, static_cast<T>(options.kernel_epsilon),
                       T(0)};
  switch (map) {
    case FeatureMap::favor_positive:
    case FeatureMap::favor_hyperbolic:
    case FeatureMap::favor_relu:
      c.query_constant = static_cast<T>(-std::log(static_cast<double>(m)));
      break;
    case FeatureMap::favor_trig:
      c.query_constant = static_cast<T>(-std::log(static_cast<double>(n_directions)));
      break;
    case FeatureMap::oprf:
      c.factor = static_cast<T>(scale) * static_cast<T>(std::sqrt(1 - 4 * a));
      c.query_constant =
          static_cast<T>(static_cast<double>(d) / 2 * std::log1p(-4 * a) - std::log(static_cast<double>(m)));
      break;
    default:
      break;
  }
  return c;
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
