// elu(x) + 1 in log form: x where x <= 0, log(1 + x) above. Per-target include guard; see framework/cpu/simd-inl.h.
#if defined(FURLONG_FEATURE_MAP_ELU1_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_MAP_ELU1_INL_H_
#undef FURLONG_FEATURE_MAP_ELU1_INL_H_
#else
#define FURLONG_FEATURE_MAP_ELU1_INL_H_
#endif

#include "framework/ops/feature_maps/feature_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Elu1 {
  /// Logarithms of the features of `rows` rows x [rows, d] into log_features [rows, m = d]; the same for queries and keys.
  static void log_features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* log_features) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const auto value = load_n(x + i * tile.ld_x + f, n);
        const auto zero = hn::Zero(d);
        const auto above = hn::Log1p(d, hn::Max(value, zero));
        store_n(hn::IfThenElse(hn::Gt(value, zero), above, value), log_features + i * tile.ld_m + f, n);
      });
    }
  }
  /// d_x [rows, d] = d_log_features · ∂ log φ / ∂x, which is 1 where x <= 0 and 1 / (1 + x) above.
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* d_log_features, T* d_x) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const auto value = load_n(x + i * tile.ld_x + f, n);
        const auto slope = hn::Div(hn::Set(d, T{1}), hn::Add(hn::Set(d, T{1}), hn::Max(value, hn::Zero(d))));
        store_n(hn::Mul(slope, load_n(d_log_features + i * tile.ld_m + f, n)), d_x + i * tile.ld_x + f, n);
      });
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
