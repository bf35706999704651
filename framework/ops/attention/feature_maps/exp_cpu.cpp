// exp(x), whose logarithm is x itself; the same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/exp_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Exp {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(x + i * tile.ld_x, tile.d, features + i * tile.ld_m);
    no_row_log(row_log, rows);
  }
  static void backward(const FeatureTile<T>& tile, const T* /*x*/, std::int64_t rows, bool /*is_key*/,
                       const T* /*features*/, T* d_features, const T* /*d_row_log*/, T* d_x) {
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(d_features + i * tile.ld_m, tile.d, d_x + i * tile.ld_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(Exp)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Exp, exp)
}  // namespace furlong::ops
#endif
