// Positive random features for the softmax kernel, in log form. With x' = x d^(-1/4): log φ_f(k) = ω_f·k' - |k'|²/2, and for queries the
// same without the last term, which cancels in the ratio. Per-target include guard; see framework/cpu/simd-inl.h.
#if defined(FURLONG_FEATURE_MAP_FAVOR_POSITIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_MAP_FAVOR_POSITIVE_INL_H_
#undef FURLONG_FEATURE_MAP_FAVOR_POSITIVE_INL_H_
#else
#define FURLONG_FEATURE_MAP_FAVOR_POSITIVE_INL_H_
#endif

#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/feature_maps/feature_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct FavorPositive {
  static void log_features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* log_features) {
    const typename Lanes<T>::D d;
    // The product with the unscaled x first: with 16-bit inputs its terms are exact.
    small_gemm_nn<T>(rows, tile.m, tile.d, x, tile.ld_x, tile.directions_transposed, tile.ld_m, log_features, tile.ld_m, false);
    const auto scale = hn::Set(d, tile.scale);
    for (std::int64_t i = 0; i < rows; ++i) {
      T half_square = 0;
      if (is_key) {
        auto sum = hn::Zero(d);
        for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
          const auto value = load_n(x + i * tile.ld_x + f, n);
          sum = hn::MulAdd(value, value, sum);
        });
        half_square = hn::GetLane(hn::SumOfLanes(d, sum)) * tile.scale * tile.scale / 2;
      }
      const auto shift = hn::Set(d, half_square);
      T* row = log_features + i * tile.ld_m;
      for_lanes<T>(tile.m,
                   [&](std::int64_t f, std::int64_t n) HWY_ATTR { store_n(hn::MulSub(load_n(row + f, n), scale, shift), row + f, n); });
    }
  }

  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* d_log_features, T* d_x) {
    const typename Lanes<T>::D d;
    small_gemm_nn<T>(rows, tile.d, tile.m, d_log_features, tile.ld_m, tile.directions, tile.d, d_x, tile.ld_x, false);
    const auto scale = hn::Set(d, tile.scale);
    for (std::int64_t i = 0; i < rows; ++i) {
      T total = 0;  // Σ_f d_log_feature: what reaches -|k'|²/2
      if (is_key) {
        auto sum = hn::Zero(d);
        for_lanes<T>(tile.m,
                     [&](std::int64_t f, std::int64_t n) HWY_ATTR { sum = hn::Add(sum, load_n(d_log_features + i * tile.ld_m + f, n)); });
        total = hn::GetLane(hn::SumOfLanes(d, sum)) * tile.scale * tile.scale;
      }
      const auto minus_total = hn::Set(d, -total);
      for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * tile.ld_x + f;
        store_n(hn::MulAdd(load_n(x + at, n), minus_total, hn::Mul(load_n(d_x + at, n), scale)), d_x + at, n);
      });
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
