// log softmax(x), then log softmax(-x), each over the d entries of the row (Zhang et al. 2024, with the softmax over
// the feature dimension that its authors use in the place of bare exponentials). x comes from a learned matrix, which
// is no part of the map. The same for queries and keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/hedgehog_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include <limits>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct Hedgehog {
  static constexpr T negative = -1, positive = 1;

  /// log Σ_f exp(sign · x_f)
  static T log_sum_exp(const T* row, std::int64_t size, T sign) {
    const typename Lanes<T>::D d;
    const auto v_sign = hn::Set(d, sign);
    const std::int64_t lanes = Lanes<T>::count();
    auto largest_lanes = hn::Set(d, std::numeric_limits<T>::lowest());
    std::int64_t whole = 0;
    for (; whole + lanes <= size; whole += lanes)
      largest_lanes = hn::Max(largest_lanes, hn::Mul(hn::LoadU(d, row + whole), v_sign));
    T largest = hn::GetLane(hn::MaxOfLanes(d, largest_lanes));
    for (; whole < size; ++whole) largest = std::max(largest, sign * row[whole]);
    const auto top = hn::Set(d, largest);
    const T sum = row_sum<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const auto term = furlong::cpu::HWY_NAMESPACE::exp(d, hn::MulSub(load_n(row + f, n), v_sign, top));
      return hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), term);
    });
    return largest + std::log(sum);
  }

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = x + i * tile.ld_x;
      T* target = features + i * tile.ld_m;
      for (T sign : {positive, negative}) {
        const auto v_sign = hn::Set(d, sign), total = hn::Set(d, log_sum_exp(row, tile.d, sign));
        map_row(row, tile.d, target, [&](auto value) HWY_ATTR { return hn::MulSub(value, v_sign, total); });
        target += tile.d;
      }
    }
    no_row_log(row_log, rows);
  }
  /// For each half ± (g - softmax Σ g).
  static void backward(const FeatureTile<T>& tile, const T* /*x*/, std::int64_t rows, bool /*is_key*/,
                       const T* features, T* d_features, const T* /*d_row_log*/, T* d_x) {
    const typename Lanes<T>::D d;
    const auto part = [&](const T* log_softmax, const T* g, std::int64_t n, auto total) HWY_ATTR {
      return hn::NegMulAdd(furlong::cpu::HWY_NAMESPACE::exp(d, load_n(log_softmax, n)), total, load_n(g, n));
    };
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* plus = features + i * tile.ld_m;
      const T* minus = plus + tile.d;
      const T* g_plus = d_features + i * tile.ld_m;
      const T* g_minus = g_plus + tile.d;
      const auto total_plus = hn::Set(d, row_sum(g_plus, tile.d)), total_minus = hn::Set(d, row_sum(g_minus, tile.d));
      for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        store_n(hn::Sub(part(plus + f, g_plus + f, n, total_plus), part(minus + f, g_minus + f, n, total_minus)),
                d_x + i * tile.ld_x + f, n);
      });
    }
  }
};

FURLONG_FEATURE_MAP_BODIES(Hedgehog)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(Hedgehog, hedgehog)
}  // namespace furlong::ops
#endif
