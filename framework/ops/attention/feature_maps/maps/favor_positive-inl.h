// Positive random features of the softmax kernel: log φ_f(k) = ω_f·k' - |k'|²/2 (Choromanski et al. 2021, lemma 1). For
// queries the last term and -log m cancel in the ratio and are the row logarithm.
template <>
struct Map<FeatureMap::favor_positive> : ProjectionMap {
  static constexpr FeatureMapProperties properties{.summary = "positive random features of softmax (Performer, FAVOR+)",
                                                   .form = FeatureForm::logarithms,
                                                   .features_per_projection = 1,
                                                   .estimates_softmax = true,
                                                   .fused = FusedForm::projection};
  static constexpr HalfSquare half_square = HalfSquare::in_features;

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(const MapNumbers<L>& c, L u, L /*square*/, L shift) {
    return multiply_subtract(u, c.factor, shift);
  }
};
