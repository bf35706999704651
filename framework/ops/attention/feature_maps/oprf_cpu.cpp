// Optimal positive random features: log φ_f(k) = A|ω_f|² + √(1-4A) ω_f·k' - |k'|²/2 + (d/4) log(1-4A), A <= 0
// (Likhosherstov et al. 2022). The constant of both sides, -log m and the query's own square are in the query's row
// logarithm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/oprf_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/projection-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct OptimalPositive {
  static T stretch(const FeatureTile<T>& tile) {
    return static_cast<T>(std::sqrt(1 - 4 * static_cast<double>(tile.oprf_a)));
  }

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    project(tile, x, rows, features);
    const auto factor = hn::Set(d, tile.scale * stretch(tile)), a = hn::Set(d, tile.oprf_a);
    const double both_sides = static_cast<double>(tile.d) / 2 * std::log1p(-4 * static_cast<double>(tile.oprf_a));
    const T constant = static_cast<T>(both_sides - std::log(static_cast<double>(tile.m)));
    for (std::int64_t i = 0; i < rows; ++i) {
      const T half = is_key || row_log ? half_square(tile, x + i * tile.ld_x) : T{0};
      const auto shift = hn::Set(d, is_key ? half : T{0});
      T* row = features + i * tile.ld_m;
      map_rows(row, tile.direction_norms, tile.m, row, [&](auto u, auto square_of_direction) HWY_ATTR {
        return hn::MulAdd(u, factor, hn::MulSub(square_of_direction, a, shift));
      });
      if (row_log) row_log[i] = is_key ? T{0} : constant - half;
    }
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* /*features*/,
                       T* d_features, const T* d_row_log, T* d_x) {
    project_back(
        tile, x, rows, d_features, tile.scale * stretch(tile),
        [&](std::int64_t i) HWY_ATTR { return d_half_square_of_logs(tile, i, is_key, d_features, d_row_log); }, d_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(OptimalPositive)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(OptimalPositive, oprf)
}  // namespace furlong::ops
#endif
