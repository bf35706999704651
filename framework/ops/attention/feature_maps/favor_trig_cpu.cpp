// Trigonometric random features of the softmax kernel (Rahimi & Recht 2007): values cos(ω_f·x') and, m/2 places later,
// sin(ω_f·x'), under the row's logarithm |x'|²/2 (for queries less log(m/2)).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/favor_trig_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/feature_map_kernels.h"
#include "framework/ops/attention/feature_maps/projection-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// cos and sin. float32: within 3 ulp of those of the number x for |x| up to 39000, where x itself has long been
/// rounded to steps of 0.004; larger arguments are held there. double: the library's, for any x.
template <class T, class V>
HWY_INLINE void cos_sin(V x, V& cosine, V& sine) {
  const typename Lanes<T>::D d;
  if constexpr (sizeof(T) == 4) {
    const auto limit = hn::Set(d, T{39000});
    const auto inside = hn::Max(hn::Neg(limit), hn::Min(x, limit));
    const auto nan = hn::Not(hn::Lt(hn::Abs(x), hn::Inf(d)));  // infinite arguments too
    cosine = hn::IfThenElse(nan, hn::NaN(d), hn::Cos(d, inside));
    sine = hn::IfThenElse(nan, hn::NaN(d), hn::Sin(d, inside));
  } else {
    alignas(64) T lanes[64 / sizeof(T)], cosines[64 / sizeof(T)], sines[64 / sizeof(T)];
    hn::StoreU(x, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      cosines[i] = std::cos(lanes[i]);
      sines[i] = std::sin(lanes[i]);
    }
    cosine = hn::LoadU(d, cosines);
    sine = hn::LoadU(d, sines);
  }
}

template <class T>
struct FavorTrig {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    project(tile, x, rows, features);
    const auto scale = hn::Set(d, tile.scale);
    const T constant = is_key ? T{0} : static_cast<T>(std::log(static_cast<double>(tile.n_directions)));
    for (std::int64_t i = 0; i < rows; ++i) {
      T* cosines = features + i * tile.ld_m;
      T* sines = cosines + tile.n_directions;
      for_lanes<T>(tile.n_directions, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        auto cosine = hn::Zero(d), sine = hn::Zero(d);
        cos_sin<T>(hn::Mul(load_n(cosines + f, n), scale), cosine, sine);
        store_n(cosine, cosines + f, n);
        store_n(sine, sines + f, n);
      });
      if (row_log) row_log[i] = half_square(tile, x + i * tile.ld_x) - constant;
    }
  }
  /// ∂cos/∂u = -sin and ∂sin/∂u = cos, both of which the features have.
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* features,
                       T* d_features, const T* d_row_log, T* d_x) {
    const std::int64_t half_m = tile.n_directions;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = features + i * tile.ld_m;
      T* d_row = d_features + i * tile.ld_m;
      for_lanes<T>(half_m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const auto from_sine = hn::Mul(load_n(row + f, n), load_n(d_row + half_m + f, n));
        store_n(hn::NegMulAdd(load_n(row + half_m + f, n), load_n(d_row + f, n), from_sine), d_row + f, n);
      });
    }
    project_back(
        tile, x, rows, d_features, tile.scale, [&](std::int64_t i) { return d_row_log ? d_row_log[i] : T{0}; }, d_x);
  }
};

FURLONG_FEATURE_MAP_BODIES(FavorTrig)

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
FURLONG_FEATURE_MAP_EXPORT(FavorTrig, favor_trig)
}  // namespace furlong::ops
#endif
