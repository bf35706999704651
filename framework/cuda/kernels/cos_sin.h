#pragma once
// Cosine and sine. The CUDA library's versions need local memory.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

__device__ inline float gpu_rint(float x) { return ::rintf(x); }
__device__ inline double gpu_rint(double x) { return ::rint(x); }

/// Computes cos x and sin x. float: error within 2.5 units of 2^-24 for |x| <= 39000, where the spacing of floats is
/// 0.004. double: error about 2^-52 for |x| <= 2^30. Larger arguments are clamped to these limits. NaN if x is infinite
/// or NaN.
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

}  // namespace FURLONG_GPU
}  // namespace furlong
