// Features (1, x / |x|) of the kernel 1 + q̂·k̂, which is never negative; a zero row has (1, 0). The same for queries and
// keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/cosine_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Cosine {
  struct Norm {
    T largest, rest;  // |x| is their product, which may leave the range of T where neither factor does
  };
  /// Of a row of zeros: {1, 0}. With a NaN in the row, `rest` is one.
  static Norm norm_of(const T* row, std::int64_t size) {
    const typename Lanes<T>::D d;
    auto largest_lanes = hn::Zero(d);
    for_lanes<T>(size, [&](std::int64_t f, std::int64_t n)
                           HWY_ATTR { largest_lanes = hn::Max(largest_lanes, hn::Abs(load_n(row + f, n))); });
    T largest = hn::GetLane(hn::MaxOfLanes(d, largest_lanes));
    if (!(largest > 0)) largest = 1;
    const auto divisor = hn::Set(d, largest);
    const T square = row_sum<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const auto value = hn::Div(load_n(row + f, n), divisor);
      return hn::Mul(value, value);
    });
    return {largest, std::sqrt(square)};
  }

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = x + i * tile.ld_x;
      T* target = features + i * tile.ld_m;
      const Norm norm = norm_of(row, tile.d);
      const auto divisor = hn::Set(d, norm.largest), inverse = hn::Set(d, norm.rest == 0 ? T{0} : 1 / norm.rest);
      target[0] = 1;
      map_row(row, tile.d, target + 1, [&](auto value) HWY_ATTR { return hn::Mul(hn::Div(value, divisor), inverse); });
    }
    no_row_log(row_log, rows);
  }
  /// d_x = (g - (g·x̂) x̂) / |x|, and zero for a row of zeros, where there is no derivative.
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* features,
                       T* d_features, const T* /*d_row_log*/, T* d_x) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* unit = features + i * tile.ld_m + 1;
      const T* g = d_features + i * tile.ld_m + 1;
      const Norm norm = norm_of(x + i * tile.ld_x, tile.d);
      const auto along = hn::Set(d, dot(g, unit, tile.d)), divisor = hn::Set(d, norm.largest),
                 inverse = hn::Set(d, norm.rest == 0 ? T{0} : 1 / norm.rest);
      map_rows(unit, g, tile.d, d_x + i * tile.ld_x, [&](auto direction, auto d_value) HWY_ATTR {
        return hn::Div(hn::Mul(hn::NegMulAdd(along, direction, d_value), inverse), divisor);
      });
    }
  }
};

FURLONG_FEATURE_MAP_BODIES(Cosine)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Cosine, cosine)
}  // namespace furlong::ops
#endif
