// The polynomial kernel (1 + q'·k' / order)^order, which converges to exp(q'·k') as the order grows. Features, in
// polynomial-inl.h, are values.
template <>
struct Map<FeatureMap::limit> : PolynomialMap<Map<FeatureMap::limit>> {
  static constexpr FeatureMapProperties properties{.summary = "(1 + q·k/order)^order",
                                                   .form = FeatureForm::values,
                                                   .highest_order = 4,
                                                   .estimates_softmax = true,
                                                   .can_vanish = true,
                                                   .can_cancel = true,
                                                   .can_be_negative = true};

  static FURLONG_LANE_FUNCTION Growth growth(int order, int r) { return {order - r + 1, order}; }
};
