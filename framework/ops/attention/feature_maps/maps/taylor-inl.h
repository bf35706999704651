// The Taylor polynomial of exp as kernel: Σ_{r <= order} (q'·k')^r / r!. Features, in polynomial-inl.h, are values.
template <>
struct Map<FeatureMap::taylor> : PolynomialMap<Map<FeatureMap::taylor>> {
  static constexpr FeatureMapProperties properties{.summary = "Taylor polynomial of exp(q·k)",
                                                   .form = FeatureForm::values,
                                                   .highest_order = 3,
                                                   .estimates_softmax = true,
                                                   .can_vanish = true,
                                                   .can_cancel = true,
                                                   .can_be_negative = true};

  static FURLONG_LANE_FUNCTION Growth growth(int /*order*/, int /*r*/) { return {1, 1}; }
};
