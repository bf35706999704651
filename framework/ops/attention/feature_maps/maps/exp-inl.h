// exp(x), whose logarithm is x itself.
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
