// The Taylor polynomial of exp: Σ_{r <= order} (q'·k')^r / r!. The same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/taylor_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/polynomial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

struct TaylorCoefficients {
  static double ratio(std::int64_t /*order*/, std::int64_t r) { return 1.0 / static_cast<double>(r); }
};
template <class T>
using Taylor = Polynomial<T, TaylorCoefficients>;

FURLONG_FEATURE_MAP_BODIES(Taylor)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Taylor, taylor)
}  // namespace furlong::ops
#endif
