// φ_f = exp(x_f), stored as log φ_f = x_f. m = d.
template <>
struct Map<FeatureMap::exp> : EntryMap {
  static constexpr FeatureMapProperties properties{
      .summary = "exp(x)", .form = FeatureForm::logarithms, .fused = FusedForm::entry};

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(L x) {
    return x;
  }
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(L /*x*/, L d_feature) {
    return d_feature;
  }
};
