// The feature maps, compiled for one device. Each device includes this file inside its own namespace, once for each
// instruction set, after it has defined
//   FURLONG_LANE_FUNCTION  how functions over lanes are declared
//   FURLONG_MAPS_ON_CPU or FURLONG_MAPS_ON_GPU  the device; neither if only properties are needed
// maps/NAME-inl.h specialises Map for one map: its `properties`, and arithmetic of one of three kinds. Where possible
// arithmetic is written once, over a lane type L (framework/simd/lane_value-inl.h): a vector on the CPU, a number on
// GPUs.
//
// FeatureMapFunctions (feature_map_cpu.h) defines feature forms, row logarithms and derivatives.

template <FeatureMap map>
struct Map;

enum class MapKind { entries, projections, rows };

/// Feature f is a function of entry f of the row:
///   L feature(L x)
///   L backward(L x, L d_feature)  ∂ loss / ∂ x from ∂ loss / ∂ feature
struct EntryMap {
  static constexpr MapKind kind = MapKind::entries;
  static constexpr std::int64_t count(std::int64_t d) { return d; }
};

/// How a map with random projections uses |x'|²/2.
enum class HalfSquare {
  unused,
  in_features,  ///< keys: log features include -|k'|²/2; queries: it is part of the row logarithm
  in_row_log    ///< queries and keys: the row logarithm includes +|x'|²/2
};

/// Features are functions of the random projection u = ω_f·x, of the unscaled x: with 16-bit x every term is exact in
/// float32. half_square says how they depend on |x'|²/2. One feature per projection:
///   L feature(const MapNumbers<L>& c, L u, L square, L shift)  square: |ω_f|² if needs_oprf_a; shift: what
///                                                              HalfSquare::in_features subtracts for keys, else 0
///   L backward(const MapNumbers<L>& c, L feature, L d_feature)  ∂ loss / ∂ (factor · u); missing: d_feature
/// or two features per projection, f and n_projections + f:
///   Pair<L> features(const MapNumbers<L>& c, L u, L shift)
///   L backward(Pair<L> features, Pair<L> d_features)
struct ProjectionMap {
  static constexpr MapKind kind = MapKind::projections;
  static constexpr HalfSquare half_square = HalfSquare::unused;
};

/// Features need the whole row; each device has its own arithmetic:
///   on the CPU  void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* features) and
///               void backward(tile, x, rows, const T* features, T* d_features, T* d_x)
///   on GPUs     void features(const GpuFeatureRows<T>& rows, const T* x, T* features) and
///               void backward(rows, x, const T* features, T* d_features, T* d_x), one warp per row
/// and count(d) returns the number of features.
struct RowMap {
  static constexpr MapKind kind = MapKind::rows;
};

template <class L>
struct MapNumbers {
  L factor;  // of u: the scale d^(-1/4), and √(1-4A)
  L oprf_a;  // A
  L kernel_epsilon;
};
template <class L>
struct Pair {
  L first, second;
};

// ---- How |x'|²/2 = half and the mean over features enter a row ----

/// Returns the factor of u.
template <class T>
FURLONG_LANE_FUNCTION T projection_factor(T scale, T oprf_a) {
  return scale * static_cast<T>(std::sqrt(1 - 4 * static_cast<double>(oprf_a)));
}
/// Returns the constant part of a query's row logarithm, for a kernel that is the mean over `mean_over` features.
template <class T>
FURLONG_LANE_FUNCTION T query_constant(std::int64_t d, std::int64_t mean_over, T oprf_a) {
  const double both_sides = static_cast<double>(d) / 2 * std::log1p(-4 * static_cast<double>(oprf_a));
  return static_cast<T>(both_sides - std::log(static_cast<double>(mean_over)));
}
template <class M, class T>
FURLONG_LANE_FUNCTION T row_log_of(T query_constant, bool is_key, T half) {
  if constexpr (M::half_square == HalfSquare::in_row_log) return half + (is_key ? T(0) : query_constant);
  if (is_key) return T(0);
  return M::half_square == HalfSquare::in_features ? query_constant - half : query_constant;
}
/// Returns ∂ loss / ∂ half, from the sum of the gradients of a key's log features and the gradient of the row
/// logarithm.
template <class M, class T>
FURLONG_LANE_FUNCTION T d_half_of(bool is_key, T sum_of_d_features, T d_row_log) {
  if constexpr (M::half_square == HalfSquare::in_row_log) return d_row_log;
  if constexpr (M::half_square == HalfSquare::unused) return T(0);
  return is_key ? -sum_of_d_features : -d_row_log;
}

#include "framework/ops/attention/feature_maps/polynomial-inl.h"

// Generated from feature_map_list.h.
#include "feature_map_files.h"

/// Calls body(Map<map>{}).
template <class Body>
FURLONG_LANE_FUNCTION void with_feature_map(FeatureMap map, const Body& body) {
  switch (map) {
#define FURLONG_FEATURE_MAP_CASE(name) \
  case FeatureMap::name:               \
    return body(Map<FeatureMap::name>{});
    FURLONG_FEATURE_MAPS(FURLONG_FEATURE_MAP_CASE)
#undef FURLONG_FEATURE_MAP_CASE
  }
}
