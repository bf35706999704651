// Positive random features of the softmax kernel: log φ_f(k) = ω_f·k' - |k'|²/2 for keys, log φ_f(q) = ω_f·q' for
// queries. m = n_projections. A query's -|q'|²/2 and -log m cancel in the ratio; they are its row logarithm
// (Choromanski et al. 2021, "Rethinking Attention with Performers", lemma 1).
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
