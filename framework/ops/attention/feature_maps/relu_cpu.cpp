// max(x, 0), element by element; the same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/relu_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Relu {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    const auto zero = hn::Zero(typename Lanes<T>::D());
    for (std::int64_t i = 0; i < rows; ++i) {
      map_row(x + i * tile.ld_x, tile.d, features + i * tile.ld_m,
              [&](auto value) HWY_ATTR { return hn::IfThenZeroElse(hn::Lt(value, zero), value); });  // a NaN stays one
    }
    no_row_log(row_log, rows);
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/,
                       const T* /*features*/, T* d_features, const T* /*d_row_log*/, T* d_x) {
    const auto zero = hn::Zero(typename Lanes<T>::D());
    for (std::int64_t i = 0; i < rows; ++i) {
      map_rows(x + i * tile.ld_x, d_features + i * tile.ld_m, tile.d, d_x + i * tile.ld_x,
               [&](auto value, auto d_value) HWY_ATTR { return hn::IfThenZeroElse(hn::Le(value, zero), d_value); });
    }
  }
};

FURLONG_FEATURE_MAP_BODIES(Relu)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Relu, relu)
}  // namespace furlong::ops
#endif
