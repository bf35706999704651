// Generalised attention with a ReLU kernel: max(ω_f·x', 0) + kernel_epsilon (Choromanski et al. 2021). The kernel is
// the mean over features: queries have the row logarithm -log m.
template <>
struct Map<FeatureMap::favor_relu> : ProjectionMap {
  static constexpr FeatureMapProperties properties{.summary = "random features of a ReLU kernel",
                                                   .form = FeatureForm::values,
                                                   .features_a_direction = 1,
                                                   .uses_kernel_epsilon = true,
                                                   .fused = FusedForm::rectified_projection};

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(const MapNumbers<L>& c, L u, L /*square*/, L /*shift*/) {
    return multiply_add(select(less(u, L(0.0)), L(0.0), u), c.factor, c.kernel_epsilon);  // a NaN stays one
  }
  /// u was positive where the feature is more than the constant: below the rounding of their sum, the sign of u is
  /// itself only rounding.
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(const MapNumbers<L>& c, L feature, L d_feature) {
    return select(less_equal(feature, c.kernel_epsilon), L(0.0), d_feature);
  }
};
