// Optimal positive random features: favor_positive with a constant A <= 0 for each head (Likhosherstov et al. 2022,
// FAVOR++). In the paper log φ_f(x) = A|ω_f|² + √(1-4A) ω_f·x' - |x'|²/2 + (d/4) log(1-4A). Keys store the first three
// terms, queries the first two. The rest of the query, the last term of both, and -log m are the query's row logarithm.
// m = n_projections.
template <>
struct Map<FeatureMap::oprf> : ProjectionMap {
  static constexpr FeatureMapProperties properties{
      .summary =
          "like favor_positive, with a constant fitted to the data for less variance (optimal positive random "
          "features, FAVOR++, Likhosherstov et al. 2022)",
      .form = FeatureForm::logarithms,
      .features_per_projection = 1,
      .estimates_softmax = true,
      .needs_oprf_a = true,
      .fused = FusedForm::stretched_projection};
  static constexpr HalfSquare half_square = HalfSquare::in_features;

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(const MapNumbers<L>& c, L u, L square, L shift) {
    return multiply_add(u, c.factor, multiply_subtract(square, c.oprf_a, shift));
  }
};
