// (1 + q'·k' / order)^order, whose limit is exp: c_r = C(order, r) / order^r. The same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/limit_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/polynomial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

struct LimitCoefficients {
  static double ratio(std::int64_t order, std::int64_t r) {
    return static_cast<double>(order - r + 1) / static_cast<double>(r * order);
  }
};
template <class T>
using Limit = Polynomial<T, LimitCoefficients>;

FURLONG_FEATURE_MAP_BODIES(Limit)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Limit, limit)
}  // namespace furlong::ops
#endif
