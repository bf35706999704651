// Generalized attention with a ReLU kernel: φ_f = max(ω_f·x', 0) + kernel_epsilon, stored as a value. m =
// n_projections. The kernel is the mean over features, so queries have the row logarithm -log m (Choromanski et al.
// 2021).
template <>
struct Map<FeatureMap::favor_relu> : ProjectionMap {
  static constexpr FeatureMapProperties properties{.summary = "random features of a ReLU kernel",
                                                   .form = FeatureForm::values,
                                                   .features_per_projection = 1,
                                                   .uses_kernel_epsilon = true,
                                                   .fused = FusedForm::rectified_projection};

  template <class L>
  static FURLONG_LANE_FUNCTION L feature(const MapNumbers<L>& c, L u, L /*square*/, L /*shift*/) {
    return multiply_add(select(less(u, L(0.0)), L(0.0), u), c.factor, c.kernel_epsilon);  // propagates NaN
  }
  /// The derivative is 1 where u > 0. u is not stored, so the test is feature > kernel_epsilon. The two differ only for
  /// u so small that it is lost in rounding.
  template <class L>
  static FURLONG_LANE_FUNCTION L backward(const MapNumbers<L>& c, L feature, L d_feature) {
    return select(less_equal(feature, c.kernel_epsilon), L(0.0), d_feature);
  }
};
