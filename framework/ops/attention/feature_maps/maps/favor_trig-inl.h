// Trigonometric random features of the softmax kernel (Rahimi & Recht 2007): the values cos(ω_f·x') at f and
// sin(ω_f·x') at n_projections + f. m = 2 n_projections. The row logarithm is |k'|²/2 for keys, |q'|²/2 -
// log(n_projections) for queries.

#if defined(FURLONG_MAPS_ON_CPU)

/// Returns cosine and sine of x in radians. float32: within 3 ulp for |x| up to 39000, where x itself is rounded to
/// steps of 0.004; larger arguments are clamped to 39000. double: the library functions, for any x.
template <class T>
HWY_INLINE Pair<LaneValue<T>> cos_sin(LaneValue<T> x) {
  const typename Lanes<T>::D d;
  if constexpr (sizeof(T) == 4) {
    const auto limit = hn::Set(d, T{39000});
    const auto inside = hn::Max(hn::Neg(limit), hn::Min(x.v, limit));
    const auto nan = hn::Not(hn::Lt(hn::Abs(x.v), hn::Inf(d)));  // infinite arguments too
    return {LaneValue<T>(hn::IfThenElse(nan, hn::NaN(d), hn::Cos(d, inside))),
            LaneValue<T>(hn::IfThenElse(nan, hn::NaN(d), hn::Sin(d, inside)))};
  } else {
    return {map_lanes(x, [](T lane) { return std::cos(lane); }), map_lanes(x, [](T lane) { return std::sin(lane); })};
  }
}
/// Returns a b + c d. Which product is rounded before the addition depends on the device.
template <class T>
HWY_INLINE LaneValue<T> sum_of_products(LaneValue<T> a, LaneValue<T> b, LaneValue<T> c, LaneValue<T> d) {
  return multiply_add(c, d, a * b);
}

#elif defined(FURLONG_MAPS_ON_GPU)

template <class T>
__device__ inline Pair<LaneValue<T>> cos_sin(LaneValue<T> x) {
  T cosine, sine;
  furlong::cos_sin(x.v, cosine, sine);
  return {LaneValue<T>(cosine), LaneValue<T>(sine)};
}
template <class T>
__device__ inline LaneValue<T> sum_of_products(LaneValue<T> a, LaneValue<T> b, LaneValue<T> c, LaneValue<T> d) {
  return multiply_add(a, b, c * d);
}

#endif

template <>
struct Map<FeatureMap::favor_trig> : ProjectionMap {
  static constexpr FeatureMapProperties properties{.summary = "cos and sin of random projections; weights are signed",
                                                   .form = FeatureForm::values,
                                                   .features_per_projection = 2,
                                                   .mean_over_projections = true,
                                                   .estimates_softmax = true,
                                                   .can_vanish = true,
                                                   .can_cancel = true,
                                                   .can_be_negative = true};
  static constexpr HalfSquare half_square = HalfSquare::in_row_log;

  template <class L>
  static FURLONG_LANE_FUNCTION Pair<L> features(const MapNumbers<L>& c, L u, L /*shift*/) {
    return cos_sin(u * c.factor);
  }
  /// ∂cos/∂u = -sin and ∂sin/∂u = cos; the features contain both.
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(Pair<L> features, Pair<L> d_features) {
    return sum_of_products(features.first, d_features.second, -features.second, d_features.first);
  }
};
