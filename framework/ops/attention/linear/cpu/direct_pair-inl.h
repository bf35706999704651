// One pair of a query and a key with log features, summed directly: for pairs whose product of normalized features
// underflows. Per-target include guard; see framework/simd/simd-inl.h.
#if defined(FURLONG_LINEAR_ATTENTION_DIRECT_PAIR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_DIRECT_PAIR_INL_H_
#undef FURLONG_LINEAR_ATTENTION_DIRECT_PAIR_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_DIRECT_PAIR_INL_H_
#endif

#include <cmath>

#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// Returns the first n lanes of `value`, and the other lanes of `otherwise`.
template <class T, class V = typename Lanes<T>::V>
HWY_INLINE V first_lanes(V value, std::int64_t n, V otherwise) {
  const typename Lanes<T>::D d;
  return n == Lanes<T>::count() ? value : hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), value, otherwise);
}

/// Returns ⌊log2 p⌋ ln 2 of positive normal numbers, from their exponent bits.
template <class T, class V = typename Lanes<T>::V>
HWY_INLINE V floor_log(V p) {
  const typename Lanes<T>::D d;
  const hn::RebindToSigned<typename Lanes<T>::D> di;
  constexpr int mantissa_bits = sizeof(T) == 8 ? 52 : 23, bias = sizeof(T) == 8 ? 1023 : 127;
  const auto bits = hn::ShiftRight<mantissa_bits>(hn::BitCast(di, p));
  return hn::Mul(hn::Sub(hn::ConvertTo(d, bits), hn::Set(d, T{bias})),
                 hn::Set(d, static_cast<T>(0.69314718055994530942)));
}

/// Log features a of a query and b of a key, [m].
template <class T>
struct DirectPair {
  using V = typename Lanes<T>::V;
  static constexpr typename Lanes<T>::D d{};
  const T *a, *b;
  std::int64_t m;

  /// Returns log Σ_f exp(a_f + b_f).
  T log_weight() const {
    const V nothing = hn::Set(d, static_cast<T>(-1e30));
    V best = nothing;
    for_lanes<T>(m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      best = hn::Max(best, first_lanes<T>(hn::Add(load_n(a + f, n), load_n(b + f, n)), n, nothing));
    });
    const T maximum = hn::GetLane(hn::MaxOfLanes(d, best));
    const V shift = hn::Set(d, maximum);
    V sum = hn::Zero(d);
    for_lanes<T>(m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = exp(d, hn::Sub(hn::Add(load_n(a + f, n), load_n(b + f, n)), shift));
      sum = hn::Add(sum, first_lanes<T>(e, n, hn::Zero(d)));
    });
    return maximum + std::log(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  /// Adds exp(a_f + b_f - top) · gradient to d_a and d_b. Returns the sum of the exponentials.
  T add_gradients(T top, T gradient, T* d_a, T* d_b) const {
    const V shift = hn::Set(d, top), by = hn::Set(d, gradient);
    V sum = hn::Zero(d);
    for_lanes<T>(m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = first_lanes<T>(exp(d, hn::Add(load_n(a + f, n), hn::Sub(load_n(b + f, n), shift))), n, hn::Zero(d));
      sum = hn::Add(sum, e);
      store_n(hn::MulAdd(e, by, load_n(d_a + f, n)), d_a + f, n);
      store_n(hn::MulAdd(e, by, load_n(d_b + f, n)), d_b + f, n);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
