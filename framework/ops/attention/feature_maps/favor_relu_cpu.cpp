// Generalised attention with a ReLU kernel: max(ω_f·x', 0) + kernel_epsilon. The kernel is the mean over features:
// queries have the row logarithm -log m.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/favor_relu_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/projection-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct FavorRelu {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    project(tile, x, rows, features);
    const auto scale = hn::Set(d, tile.scale), epsilon = hn::Set(d, tile.kernel_epsilon), zero = hn::Zero(d);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = features + i * tile.ld_m;
      map_row(row, tile.m, row, [&](auto u) HWY_ATTR {
        return hn::MulAdd(hn::IfThenZeroElse(hn::Lt(u, zero), u), scale, epsilon);  // a NaN stays one
      });
    }
    if (row_log) std::fill_n(row_log, rows, is_key ? T{0} : -static_cast<T>(std::log(static_cast<double>(tile.m))));
  }
  /// u was positive where the feature is more than the constant: below the rounding of their sum, the sign of u is
  /// itself only rounding.
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* features,
                       T* d_features, const T* /*d_row_log*/, T* d_x) {
    const auto epsilon = hn::Set(typename Lanes<T>::D(), tile.kernel_epsilon);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = d_features + i * tile.ld_m;
      map_rows(features + i * tile.ld_m, row, tile.m, row,
               [&](auto value, auto d_value) HWY_ATTR { return hn::IfThenZeroElse(hn::Le(value, epsilon), d_value); });
    }
    project_back(
        tile, x, rows, d_features, tile.scale, [](std::int64_t) { return T{0}; }, d_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(FavorRelu)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(FavorRelu, favor_relu)
}  // namespace furlong::ops
#endif
