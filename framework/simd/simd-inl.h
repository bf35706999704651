// Portable SIMD helpers, compiled once for each instruction set (Highway's per-target include guard; see
// framework/simd/targets.h).
//
// The structure of a file of CPU kernels:
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "framework/ops/name_cpu.cpp"
//   #include "framework/simd/targets.h"  // a separate block, because it must come first
//   #include <hwy/foreach_target.h>
//   #include "framework/simd/simd-inl.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace furlong::ops::HWY_NAMESPACE { ... void Body(...) ... }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace furlong::ops { HWY_EXPORT(Body); void body_cpu(...) { HWY_DYNAMIC_DISPATCH(Body)(...); } }
//   #endif
#if defined(FURLONG_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_SIMD_INL_H_
#undef FURLONG_SIMD_INL_H_
#else
#define FURLONG_SIMD_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#include "framework/core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors for elements stored as T: float, double or bfloat16. Lanes have the compute type, which is float for
/// bfloat16; loads and stores convert (round to nearest even). Addresses need no alignment.
template <class T>
struct Lanes {
  using Compute = compute_t<T>;
  using D = hn::ScalableTag<Compute>;
  using V = hn::Vec<D>;
  static HWY_INLINE std::int64_t count() { return static_cast<std::int64_t>(hn::Lanes(D())); }

  static HWY_INLINE V load(const T* source) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      const hn::Rebind<std::uint16_t, D> d16;
      const hn::RebindToUnsigned<D> d32;
      return hn::BitCast(
          D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(source)))));
    } else {
      return hn::LoadU(D(), source);
    }
  }
  static HWY_INLINE void store(V value, T* target) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      const hn::Rebind<std::uint16_t, D> d16;
      const hn::RebindToUnsigned<D> d32;
      const auto bits = hn::BitCast(d32, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
      auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
      const auto nan = hn::RebindMask(d32, hn::IsNaN(value));
      rounded = hn::IfThenElse(nan, hn::Set(d32, 0x7fc0u), rounded);
      hn::StoreU(hn::TruncateTo(d16, rounded), d16, reinterpret_cast<std::uint16_t*>(target));
    } else {
      hn::StoreU(value, D(), target);
    }
  }
  /// Loads the first `n` lanes (n < count()); the others are zero.
  static HWY_INLINE V load_first(const T* source, std::int64_t n) {
    alignas(64) T buffer[64 / sizeof(Compute)] = {};
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = source[i];
    return load(buffer);
  }
  /// Stores the first `n` lanes (n < count()) and touches no other memory.
  static HWY_INLINE void store_first(V value, T* target, std::int64_t n) {
    alignas(64) T buffer[64 / sizeof(Compute)];
    store(value, buffer);
    for (std::int64_t i = 0; i < n; ++i) target[i] = buffer[i];
  }
};

/// Calls body(i, n) for each vector of elements i to i + n - 1 of [0, size). n is the number of lanes, except in a
/// last, shorter vector. Use load_n and store_n to load and store `n` lanes.
template <class T, class Body>
HWY_INLINE void for_lanes(std::int64_t size, const Body& body) {
  const std::int64_t step = Lanes<T>::count();
  std::int64_t i = 0;
  for (; i + step <= size; i += step) body(i, step);
  if (i < size) body(i, size - i);
}
/// Loads the first n <= count() lanes; the others are zero.
template <class T>
HWY_INLINE typename Lanes<T>::V load_n(const T* source, std::int64_t n) {
  return n == Lanes<T>::count() ? Lanes<T>::load(source) : Lanes<T>::load_first(source, n);
}
/// Stores the first n <= count() lanes.
template <class T>
HWY_INLINE void store_n(typename Lanes<T>::V value, T* target, std::int64_t n) {
  if (n == Lanes<T>::count()) {
    Lanes<T>::store(value, target);
  } else {
    Lanes<T>::store_first(value, target, n);
  }
}

/// Returns e^x. In double: Highway's function, within 1 ulp. In float32, with half as many operations: x = k ln 2 + r
/// with |r| <= ln 2 / 2, a polynomial for e^r with an error of a twentieth of an ulp, and k added to the exponent. The
/// error is within 1.01 ulp (tests/framework/simd/test_exp.cpp). The result is zero if it would be subnormal, and the
/// largest finite number if it would overflow. NaN stays NaN, so that earlier errors remain visible.
template <class D, class V>
HWY_INLINE V exp(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const V result = hn::Exp(d, hn::Min(x, hn::Set(d, 709.0)));
    return hn::IfThenElse(hn::IsNaN(x), x, result);
  } else {
    const hn::RebindToSigned<D> integers;
    const V magic = hn::Set(d, 0x1.8p23f);  // adding it leaves round(x) in the low bits of the significand
    const V bounded = hn::Min(x, hn::Set(d, 88.72283f));
    const V shifted = hn::MulAdd(bounded, hn::Set(d, 1.44269504f), magic);
    const V k = hn::Sub(shifted, magic);
    V r =
        hn::NegMulAdd(k, hn::Set(d, 0x1.62e4p-1f), bounded);  // the leading bits of ln 2, so that the product is exact,
    r = hn::NegMulAdd(k, hn::Set(d, 0x1.7f7d1cp-20f), r);     // and the remaining bits
    V p = hn::Set(d, 0x1.6db4e4p-10f);
    p = hn::MulAdd(p, r, hn::Set(d, 0x1.123bep-7f));
    p = hn::MulAdd(p, r, hn::Set(d, 0x1.55545ep-5f));
    p = hn::MulAdd(p, r, hn::Set(d, 0x1.55548ep-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
    p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
    const V power =
        hn::BitCast(d, hn::Add(hn::BitCast(integers, p), hn::ShiftLeft<23>(hn::BitCast(integers, shifted))));
    const V result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33654f)), power);
    return hn::IfThenElse(hn::IsNaN(x), x, result);
  }
}

}  // namespace furlong::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
