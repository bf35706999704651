// Positive random features for ω and -ω: log φ(k) = ±ω·k' - |k'|²/2. Feature f of the first half uses ω_f, feature f of
// the second half -ω_f (Choromanski et al. 2021, lemma 1). For queries the last term and -log m are part of the row
// logarithm, as in favor_positive.
template <>
struct Map<FeatureMap::favor_hyperbolic> : ProjectionMap {
  static constexpr FeatureMapProperties properties{
      .summary = "like favor_positive, two features per projection: exp(±u)",
      .form = FeatureForm::logarithms,
      .features_per_projection = 2,
      .estimates_softmax = true,
      .fused = FusedForm::projection};
  static constexpr HalfSquare half_square = HalfSquare::in_features;

  template <class L>
  static FURLONG_LANE_FUNCTION Pair<L> features(const MapNumbers<L>& c, L u, L shift) {
    return {multiply_subtract(u, c.factor, shift), multiply_subtract(-u, c.factor, shift)};
  }
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(Pair<L> /*features*/, Pair<L> d_features) {
    return d_features.first - d_features.second;
  }
};
