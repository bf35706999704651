// Operations on single contiguous rows of a tile, for feature maps. T is float or double. Compiled once for each
// instruction set; see framework/simd/simd-inl.h.
#if defined(FURLONG_FEATURE_MAP_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_MAP_ROWS_INL_H_
#undef FURLONG_FEATURE_MAP_ROWS_INL_H_
#else
#define FURLONG_FEATURE_MAP_ROWS_INL_H_
#endif

#include <algorithm>

#include "framework/ops/attention/feature_maps/feature_map_cpu.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// Returns the sum of `size` terms. term(f, n) returns a vector with terms f to f + n - 1; lanes from n on must be
/// zero.
template <class T, class Term>
HWY_INLINE T row_sum(std::int64_t size, const Term& term) {
  const typename Lanes<T>::D d;
  auto sum = hn::Zero(d);
  for_lanes<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR { sum = hn::Add(sum, term(f, n)); });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}
/// Returns Σ_f x[f].
template <class T>
HWY_INLINE T row_sum(const T* x, std::int64_t size) {
  return row_sum<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR { return load_n(x + f, n); });
}
/// Returns Σ_f a[f] b[f].
template <class T>
HWY_INLINE T dot(const T* a, const T* b, std::int64_t size) {
  const typename Lanes<T>::D d;
  auto sum = hn::Zero(d);
  for_lanes<T>(size, [&](std::int64_t f, std::int64_t n)
                         HWY_ATTR { sum = hn::MulAdd(load_n(a + f, n), load_n(b + f, n), sum); });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// target[f] = value(x[f]) for f < size. `value` maps a vector to a vector. target may be x.
template <class T, class Value>
HWY_INLINE void map_row(const T* x, std::int64_t size, T* target, const Value& value) {
  for_lanes<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR { store_n(value(load_n(x + f, n)), target + f, n); });
}
/// target[f] = value(a[f], b[f]), likewise. target may be a or b.
template <class T, class Value>
HWY_INLINE void map_rows(const T* a, const T* b, std::int64_t size, T* target, const Value& value) {
  for_lanes<T>(size, [&](std::int64_t f, std::int64_t n)
                         HWY_ATTR { store_n(value(load_n(a + f, n), load_n(b + f, n)), target + f, n); });
}

/// Sets row_log [rows] to zero, unless it is null, for features that leave nothing out.
template <class T>
HWY_INLINE void no_row_log(T* row_log, std::int64_t rows) {
  if (row_log) std::fill_n(row_log, rows, T{0});
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
