// The positive random features of favor_positive for ω_f and for -ω_f: log φ(k) = ±ω_f·k' - |k'|²/2, with + at f and -
// at n_projections + f. m = 2 n_projections. For queries -|q'|²/2 and -log m are the row logarithm, as in
// favor_positive (Choromanski et al. 2021, lemma 1).
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
