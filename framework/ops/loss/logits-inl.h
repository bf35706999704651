// Shared by losses over rows of logits, float or double. Compiled once for each instruction set.
#if defined(FURLONG_OPS_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_LOGITS_INL_H_
#undef FURLONG_OPS_LOGITS_INL_H_
#else
#define FURLONG_OPS_LOGITS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// Loads the first k elements of `values` into a vector. Other lanes are -infinity, so that they affect neither a
/// maximum nor a sum of exponentials.
template <class C>
HWY_INLINE typename Lanes<C>::V load_logits(const C* values, std::int64_t k) {
  const typename Lanes<C>::D d;
  const auto loaded = load_n(values, k);
  if (k == Lanes<C>::count()) return loaded;
  return hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(k)), loaded,
                        hn::Set(d, -std::numeric_limits<C>::infinity()));
}

/// Returns the maximum of n logits; -infinity if n is 0.
template <class C>
HWY_INLINE C largest(const C* logits, std::int64_t n) {
  const typename Lanes<C>::D d;
  const std::int64_t step = Lanes<C>::count();
  auto maximum = hn::Set(d, -std::numeric_limits<C>::infinity()), other = maximum;
  std::int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    maximum = hn::Max(maximum, Lanes<C>::load(logits + i));
    other = hn::Max(other, Lanes<C>::load(logits + i + step));
  }
  for (; i < n; i += step) maximum = hn::Max(maximum, load_logits(logits + i, std::min(step, n - i)));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(maximum, other)));
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
