// Feature maps of a tile of rows on the CPU, by the arithmetic of maps/NAME-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/feature_maps/feature_map_functions_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/feature_maps/projection-inl.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"
#include "framework/simd/lane_value-inl.h"

#undef FURLONG_MAPS_ON_CPU
#define FURLONG_MAPS_ON_CPU
#undef FURLONG_LANE_FUNCTION
#define FURLONG_LANE_FUNCTION HWY_INLINE

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

#include "framework/ops/attention/feature_maps/feature_map-inl.h"

/// Functions of a map whose feature f depends only on entry f.
template <class T, class M>
struct EntryRows {
  using L = LaneValue<T>;

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    for (std::int64_t i = 0; i < rows; ++i) {
      map_row(x + i * tile.ld_x, tile.d, features + i * tile.ld_m,
              [](auto value) HWY_ATTR { return M::feature(L(value)).v; });
    }
    no_row_log(row_log, rows);
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/,
                       const T* /*features*/, T* d_features, const T* /*d_row_log*/, T* d_x) {
    for (std::int64_t i = 0; i < rows; ++i) {
      map_rows(x + i * tile.ld_x, d_features + i * tile.ld_m, tile.d, d_x + i * tile.ld_x,
               [](auto value, auto d_feature) HWY_ATTR { return M::backward(L(value), L(d_feature)).v; });
    }
  }
};

/// Functions of a map that has its own arithmetic for whole rows.
template <class T, class M>
struct WholeRows {
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    M::features(tile, x, rows, features);
    no_row_log(row_log, rows);
  }
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* features,
                       T* d_features, const T* /*d_row_log*/, T* d_x) {
    M::backward(tile, x, rows, features, d_features, d_x);
  }
};

/// Functions of a map with random projections.
template <class T, class M>
struct ProjectionRows {
  using L = LaneValue<T>;
  static constexpr bool two = M::properties.features_per_projection == 2;
  static constexpr bool shifts_keys = M::half_square == HalfSquare::in_features;

  static T oprf_a(const FeatureTile<T>& tile) { return M::properties.needs_oprf_a ? tile.oprf_a : T{0}; }
  static T factor(const FeatureTile<T>& tile) { return projection_factor(tile.scale, oprf_a(tile)); }
  static HWY_INLINE MapNumbers<L> numbers(const FeatureTile<T>& tile) {
    return {L(factor(tile)), L(oprf_a(tile)), L(tile.kernel_epsilon)};
  }

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                       T* row_log) {
    project(tile, x, rows, features);
    const MapNumbers<L> c = numbers(tile);
    const T constant =
        query_constant(tile.d, M::properties.mean_over_projections ? tile.n_projections : tile.m, oprf_a(tile));
    for (std::int64_t i = 0; i < rows; ++i) {
      const bool needs_half = M::half_square != HalfSquare::unused && (row_log || (shifts_keys && is_key));
      const T half = needs_half ? half_square(tile, x + i * tile.ld_x) : T{0};
      const L shift(shifts_keys && is_key ? half : T{0});
      T *first = features + i * tile.ld_m, *second = first + tile.n_projections;
      for_lanes<T>(tile.n_projections, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const L u(load_n(first + f, n));
        if constexpr (two) {
          const Pair<L> both = M::features(c, u, shift);
          store_n(both.first.v, first + f, n);
          store_n(both.second.v, second + f, n);
        } else {
          const L square(M::properties.needs_oprf_a ? load_n(tile.direction_norms + f, n) : u.v);
          store_n(M::feature(c, u, square, shift).v, first + f, n);
        }
      });
      if (row_log) row_log[i] = row_log_of<M>(constant, is_key, half);
    }
  }

  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* features,
                       T* d_features, const T* d_row_log, T* d_x) {
    const MapNumbers<L> c = numbers(tile);
    T* d_half = tile.scratch;
    for (std::int64_t i = 0; i < rows; ++i) {
      T *d_first = d_features + i * tile.ld_m, *d_second = d_first + tile.n_projections;
      const T *first = features + i * tile.ld_m, *second = first + tile.n_projections;
      const T sum = shifts_keys && is_key ? row_sum(d_first, tile.m) : T{0};
      d_half[i] = is_key || d_row_log ? d_half_of<M>(is_key, sum, d_row_log ? d_row_log[i] : T{0}) : T{0};
      const auto transform = [&](const auto& gradient) HWY_ATTR {
        for_lanes<T>(tile.n_projections,
                     [&](std::int64_t f, std::int64_t n) HWY_ATTR { store_n(gradient(f, n).v, d_first + f, n); });
      };
      if constexpr (two) {
        transform([&](std::int64_t f, std::int64_t n) HWY_ATTR {
          return M::backward(Pair<L>{L(load_n(first + f, n)), L(load_n(second + f, n))},
                             Pair<L>{L(load_n(d_first + f, n)), L(load_n(d_second + f, n))});
        });
      } else if constexpr (requires { M::backward(c, c.factor, c.factor); }) {
        transform([&](std::int64_t f, std::int64_t n)
                      HWY_ATTR { return M::backward(c, L(load_n(first + f, n)), L(load_n(d_first + f, n))); });
      }
    }
    project_back(
        tile, x, rows, d_features, factor(tile), [&](std::int64_t i) { return d_half[i]; }, d_x);
  }
};

template <class T>
FeatureMapFunctions<T> functions_of(FeatureMap map) {
  FeatureMapFunctions<T> functions;
  with_feature_map(map, [&](auto chosen) {
    using M = decltype(chosen);
    const auto take = [&]<class Rows>(std::type_identity<Rows>) { functions = {&Rows::features, &Rows::backward}; };
    if constexpr (M::kind == MapKind::entries) take(std::type_identity<EntryRows<T, M>>{});
    if constexpr (M::kind == MapKind::projections) take(std::type_identity<ProjectionRows<T, M>>{});
    if constexpr (M::kind == MapKind::rows) take(std::type_identity<WholeRows<T, M>>{});
  });
  return functions;
}
FeatureMapFunctions<float> FunctionsF32(FeatureMap map) { return functions_of<float>(map); }
FeatureMapFunctions<double> FunctionsF64(FeatureMap map) { return functions_of<double>(map); }

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {

HWY_EXPORT(FunctionsF32);
HWY_EXPORT(FunctionsF64);

template <>
FeatureMapFunctions<float> feature_map_functions_cpu<float>(FeatureMap map) {
  return HWY_DYNAMIC_DISPATCH(FunctionsF32)(map);
}
template <>
FeatureMapFunctions<double> feature_map_functions_cpu<double>(FeatureMap map) {
  return HWY_DYNAMIC_DISPATCH(FunctionsF64)(map);
}

}  // namespace furlong::ops
#endif
