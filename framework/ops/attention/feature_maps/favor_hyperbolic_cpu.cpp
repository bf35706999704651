// Positive random features for ω and for -ω: log φ(k) = ±ω·k' - |k'|²/2, feature f of the first half with ω_f, feature
// f of the second with -ω_f. Queries leave the last term and -log m to the row's logarithm, as in favor_positive.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/favor_hyperbolic_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/projection-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct FavorHyperbolic {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    project(tile, x, rows, features);
    const std::int64_t half_m = tile.n_directions;
    const auto scale = hn::Set(d, tile.scale);
    const T log_m = static_cast<T>(std::log(static_cast<double>(tile.m)));
    for (std::int64_t i = 0; i < rows; ++i) {
      const T half = is_key || row_log ? half_square(tile, x + i * tile.ld_x) : T{0};
      const auto shift = hn::Set(d, is_key ? half : T{0});
      T* row = features + i * tile.ld_m;
      map_row(row, half_m, row + half_m, [&](auto u) HWY_ATTR { return hn::NegMulSub(u, scale, shift); });
      map_row(row, half_m, row, [&](auto u) HWY_ATTR { return hn::MulSub(u, scale, shift); });
      if (row_log) row_log[i] = is_key ? T{0} : -half - log_m;
    }
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* /*features*/,
                       T* d_features, const T* d_row_log, T* d_x) {
    T* d_half = tile.scratch;
    for (std::int64_t i = 0; i < rows; ++i) {
      d_half[i] = d_half_square_of_logs(tile, i, is_key, d_features, d_row_log);
      T* row = d_features + i * tile.ld_m;
      map_rows(row, row + tile.n_directions, tile.n_directions, row,
               [](auto plus, auto minus) HWY_ATTR { return hn::Sub(plus, minus); });
    }
    project_back(
        tile, x, rows, d_features, tile.scale, [&](std::int64_t i) { return d_half[i]; }, d_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(FavorHyperbolic)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(FavorHyperbolic, favor_hyperbolic)
}  // namespace furlong::ops
#endif
