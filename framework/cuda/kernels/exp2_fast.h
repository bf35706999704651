#pragma once
// Exponential and logarithm to base 2 by the special-function unit, one instruction each. Kernels that compute in
// logarithms store them to base 2.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

inline constexpr float log2_of_e = 1.44269504088896340736f, log_of_2 = 0.69314718055994530942f;

/// Returns 2^x: relative error 2^-22, exact for integers. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = gpu_exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
#endif
}
/// Returns log2 x of a positive normal number: absolute error 2^-22 near 1.
__device__ __forceinline__ float log2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
#else
  return gpu_log(x) * log2_of_e;
#endif
}

}  // namespace FURLONG_GPU
}  // namespace furlong
