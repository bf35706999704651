// elu(x) + 1 in log form: x where x <= 0, log(1 + x) above; the same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/elu1_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Elu1 {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    const auto zero = hn::Zero(d);
    for (std::int64_t i = 0; i < rows; ++i) {
      map_row(x + i * tile.ld_x, tile.d, features + i * tile.ld_m, [&](auto value) HWY_ATTR {
        return hn::IfThenElse(hn::Gt(value, zero), hn::Log1p(d, hn::Max(value, zero)), value);
      });
    }
    no_row_log(row_log, rows);
  }
  /// ∂ log φ / ∂x is 1 where x <= 0 and 1 / (1 + x) above.
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/,
                       const T* /*features*/, T* d_features, const T* /*d_row_log*/, T* d_x) {
    const typename Lanes<T>::D d;
    const auto zero = hn::Zero(d), one = hn::Set(d, T{1});
    for (std::int64_t i = 0; i < rows; ++i) {
      map_rows(x + i * tile.ld_x, d_features + i * tile.ld_m, tile.d, d_x + i * tile.ld_x,
               [&](auto value, auto d_log)
                   HWY_ATTR { return hn::Div(d_log, hn::Add(one, hn::IfThenZeroElse(hn::Lt(value, zero), value))); });
    }
  }
};

FURLONG_FEATURE_MAP_BODIES(Elu1)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Elu1, elu1)
}  // namespace furlong::ops
#endif
