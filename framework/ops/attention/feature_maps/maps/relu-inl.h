// φ_f = max(x_f, 0), stored as a value. m = d.
template <>
struct Map<FeatureMap::relu> : EntryMap {
  static constexpr FeatureMapProperties properties{
      .summary = "max(x, 0)", .form = FeatureForm::values, .can_vanish = true, .fused = FusedForm::relu};

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(L x) {
    return select(less(x, L(0.0)), L(0.0), x);  // propagates NaN
  }
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(L x, L d_feature) {
    return select(less_equal(x, L(0.0)), L(0.0), d_feature);
  }
};
