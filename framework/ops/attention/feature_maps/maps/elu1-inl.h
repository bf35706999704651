// φ_f = elu(x_f) + 1, stored as log φ_f: x_f if x_f <= 0, log(1 + x_f) above 0. m = d (Katharopoulos et al. 2020,
// "Transformers are RNNs", equation 7).
template <>
struct Map<FeatureMap::elu1> : EntryMap {
  static constexpr FeatureMapProperties properties{
      .summary = "elu(x) + 1 (Linear Transformer)", .form = FeatureForm::logarithms, .fused = FusedForm::elu1};

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(L x) {
    return select(less(L(0.0), x), log1p(x), x);
  }
  /// ∂ log φ / ∂x is 1 if x <= 0 and 1 / (1 + x) above 0.
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(L x, L d_feature) {
    return d_feature / (L(1.0) + select(less(x, L(0.0)), L(0.0), x));
  }
};
