// A vector of lanes with the syntax of a number, so that element-wise maths reads like its formula and can be shared
// with an engine whose lane is a scalar. Such a type provides: Scalar, construction from a double, + - * / and unary -,
// exp, log1p, multiply_add, absolute, less, less_equal, select, map_lanes. Included once for each instruction set (see
// framework/simd/simd-inl.h).
#if defined(FURLONG_CPU_LANE_VALUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_CPU_LANE_VALUE_INL_H_
#undef FURLONG_CPU_LANE_VALUE_INL_H_
#else
#define FURLONG_CPU_LANE_VALUE_INL_H_
#endif

#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simd::HWY_NAMESPACE {

template <class T>
struct LaneValue {
  using Scalar = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using M = hn::Mask<D>;
  V v;

  explicit HWY_INLINE LaneValue(V value) : v(value) {}
  explicit HWY_INLINE LaneValue(double constant) : v(hn::Set(D(), static_cast<T>(constant))) {}

  friend HWY_INLINE LaneValue operator+(LaneValue a, LaneValue b) { return LaneValue(hn::Add(a.v, b.v)); }
  friend HWY_INLINE LaneValue operator-(LaneValue a, LaneValue b) { return LaneValue(hn::Sub(a.v, b.v)); }
  friend HWY_INLINE LaneValue operator*(LaneValue a, LaneValue b) { return LaneValue(hn::Mul(a.v, b.v)); }
  friend HWY_INLINE LaneValue operator/(LaneValue a, LaneValue b) { return LaneValue(hn::Div(a.v, b.v)); }
  friend HWY_INLINE LaneValue operator-(LaneValue a) { return LaneValue(hn::Neg(a.v)); }
  /// a * b + c, rounded once if the instruction set has FMA.
  friend HWY_INLINE LaneValue multiply_add(LaneValue a, LaneValue b, LaneValue c) {
    return LaneValue(hn::MulAdd(a.v, b.v, c.v));
  }
  /// a * b - c, likewise. With c = a * b this is the rounding error of the product (0 without FMA).
  friend HWY_INLINE LaneValue multiply_subtract(LaneValue a, LaneValue b, LaneValue c) {
    return LaneValue(hn::MulSub(a.v, b.v, c.v));
  }
  friend HWY_INLINE LaneValue absolute(LaneValue a) { return LaneValue(hn::Abs(a.v)); }
  /// The smaller number; `bound` if a is NaN.
  friend HWY_INLINE LaneValue at_most(LaneValue a, LaneValue bound) { return LaneValue(hn::Min(a.v, bound.v)); }
  friend HWY_INLINE LaneValue at_least(LaneValue a, LaneValue bound) { return LaneValue(hn::Max(a.v, bound.v)); }
  friend HWY_INLINE LaneValue log1p(LaneValue a) { return LaneValue(hn::Log1p(D(), a.v)); }
  friend HWY_INLINE LaneValue exp(LaneValue a) { return LaneValue(simd::HWY_NAMESPACE::exp(D(), a.v)); }
  friend HWY_INLINE M less(LaneValue a, LaneValue b) { return hn::Lt(a.v, b.v); }
  friend HWY_INLINE M less_equal(LaneValue a, LaneValue b) { return hn::Le(a.v, b.v); }
  friend HWY_INLINE LaneValue select(M condition, LaneValue yes, LaneValue no) {
    return LaneValue(hn::IfThenElse(condition, yes.v, no.v));
  }
  /// Applies f to each lane in turn. For double, where one library call per lane is accurate and fast enough.
  template <class F>
  friend HWY_INLINE LaneValue map_lanes(LaneValue a, const F& f) {
    alignas(64) T lanes[64 / sizeof(T)];
    hn::StoreU(a.v, D(), lanes);
    for (std::size_t i = 0; i < hn::Lanes(D()); ++i) lanes[i] = f(lanes[i]);
    return LaneValue(hn::LoadU(D(), lanes));
  }
};

}  // namespace furlong::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
