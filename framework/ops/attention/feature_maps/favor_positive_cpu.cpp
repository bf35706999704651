// Positive random features of the softmax kernel: log φ_f(k) = ω_f·k' - |k'|²/2. For queries the last term and -log m
// cancel in the ratio and are the row's logarithm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/favor_positive_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/projection-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct FavorPositive {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    project(tile, x, rows, features);
    const auto scale = hn::Set(d, tile.scale);
    const T log_m = static_cast<T>(std::log(static_cast<double>(tile.m)));
    for (std::int64_t i = 0; i < rows; ++i) {
      const T half = is_key || row_log ? half_square(tile, x + i * tile.ld_x) : T{0};
      const auto shift = hn::Set(d, is_key ? half : T{0});
      T* row = features + i * tile.ld_m;
      map_row(row, tile.m, row, [&](auto u) HWY_ATTR { return hn::MulSub(u, scale, shift); });
      if (row_log) row_log[i] = is_key ? T{0} : -half - log_m;
    }
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* /*features*/,
                       T* d_features, const T* d_row_log, T* d_x) {
    project_back(
        tile, x, rows, d_features, tile.scale,
        [&](std::int64_t i) HWY_ATTR { return d_half_square_of_logs(tile, i, is_key, d_features, d_row_log); }, d_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(FavorPositive)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(FavorPositive, favor_positive)
}  // namespace furlong::ops
#endif
