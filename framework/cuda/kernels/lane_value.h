#pragma once
// The scalar lane type of kernels, for element-wise maths written once over a lane type (the vector lane type is in
// framework/simd/lane_value-inl.h). Every operation is rounded separately; the compiler does not contract them. float32
// results match, bit for bit, those of a CPU that fuses multiply_add.
#include <type_traits>

#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

__device__ inline float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ inline double rounded_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ inline float rounded_sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
__device__ inline double rounded_sum(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

/// e^x, operation by operation as in framework/simd/simd-inl.h. Error within 1.01 ulp. Zero if the result would be
/// subnormal, the largest finite number if it would overflow, NaN if x is NaN.
__device__ inline float lane_exp(float x) {
  constexpr float magic = 0x1.8p23f;  // adding it leaves round(x) in the low bits of the significand
  const float bounded = gpu_min(x, 88.72283f);
  const float shifted = gpu_fma(bounded, 1.44269504f, magic);
  const float k = rounded_sum(shifted, -magic);
  const float r = gpu_fma(-k, 0x1.7f7d1cp-20f, gpu_fma(-k, 0x1.62e4p-1f, bounded));  // bounded - k ln 2, in two parts
  float p = 0x1.6db4e4p-10f;
  p = gpu_fma(p, r, 0x1.123bep-7f);
  p = gpu_fma(p, r, 0x1.55545ep-5f);
  p = gpu_fma(p, r, 0x1.55548ep-3f);
  p = gpu_fma(p, r, 0.5f);
  p = rounded_sum(gpu_fma(rounded_product(r, r), p, r), 1.0f);
  const float power = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
  return x != x ? x : x < -87.33654f ? 0.0f : power;
}
/// Clamped as on the CPU.
__device__ inline double lane_exp(double x) { return x != x ? x : gpu_exp(gpu_min(x, 709.0)); }

template <class T>
struct LaneValue {
  using Scalar = T;
  T v;

  template <class Number>
  requires std::is_arithmetic_v<Number> __device__ explicit LaneValue(Number value) : v(static_cast<T>(value)) {}

  friend __device__ LaneValue operator+(LaneValue a, LaneValue b) { return LaneValue(rounded_sum(a.v, b.v)); }
  friend __device__ LaneValue operator-(LaneValue a, LaneValue b) { return LaneValue(rounded_sum(a.v, -b.v)); }
  friend __device__ LaneValue operator*(LaneValue a, LaneValue b) { return LaneValue(rounded_product(a.v, b.v)); }
  friend __device__ LaneValue operator/(LaneValue a, LaneValue b) { return LaneValue(a.v / b.v); }
  friend __device__ LaneValue operator-(LaneValue a) { return LaneValue(-a.v); }
  /// a * b + c, rounded once.
  friend __device__ LaneValue multiply_add(LaneValue a, LaneValue b, LaneValue c) {
    return LaneValue(gpu_fma(a.v, b.v, c.v));
  }
  /// a * b - c, rounded once.
  friend __device__ LaneValue multiply_subtract(LaneValue a, LaneValue b, LaneValue c) {
    return LaneValue(gpu_fma(a.v, b.v, -c.v));
  }
  friend __device__ LaneValue absolute(LaneValue a) { return LaneValue(gpu_abs(a.v)); }
  friend __device__ LaneValue square_root(LaneValue a) { return LaneValue(gpu_sqrt(a.v)); }
  /// The smaller number; `bound` if a is NaN.
  friend __device__ LaneValue at_most(LaneValue a, LaneValue bound) { return LaneValue(gpu_min(a.v, bound.v)); }
  friend __device__ LaneValue at_least(LaneValue a, LaneValue bound) { return LaneValue(gpu_max(a.v, bound.v)); }
  friend __device__ LaneValue log1p(LaneValue a) { return LaneValue(gpu_log1p(a.v)); }
  friend __device__ LaneValue exp(LaneValue a) { return LaneValue(lane_exp(a.v)); }
  friend __device__ bool less(LaneValue a, LaneValue b) { return a.v < b.v; }
  friend __device__ bool less_equal(LaneValue a, LaneValue b) { return a.v <= b.v; }
  friend __device__ LaneValue select(bool condition, LaneValue yes, LaneValue no) { return condition ? yes : no; }
  template <class F>
  friend __device__ LaneValue map_lanes(LaneValue a, const F& f) {
    return LaneValue(f(a.v));
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong
