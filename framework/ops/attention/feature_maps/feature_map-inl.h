// The feature maps, compiled for one device. Each device includes this file inside its own namespace, once for each
// instruction set, after it has defined
//   FURLONG_LANE_FUNCTION  how functions over lanes are declared
//   FURLONG_MAPS_ON_CPU or FURLONG_MAPS_ON_GPU  the device; neither if only properties are needed
// maps/NAME-inl.h specializes Map for one map: its `properties`, and arithmetic of one of three kinds (MapKind). Where
// possible arithmetic is written once, over a lane type L (framework/simd/lane_value-inl.h): a vector on the CPU, a
// number on GPUs.
//
// Notation in all maps: x is a row of d entries, a query q or a key k of one head. x' = d^(-1/4) x, so that q'·k' =
// q·k/√d. ω_f is row f of the random projection, and u = ω_f·x. m is the number of features. "feature" means what the
// map stores: a logarithm or a value, by properties.form. FeatureMapFunctions (feature_map_cpu.h) defines these forms
// and the row logarithm. Functions return their result; those with a target pointer overwrite it.

template <FeatureMap map>
struct Map;

/// What a feature depends on: one entry of the row, one projection of the row, or the whole row. A map of each kind is
/// derived from the struct below that names the functions it provides.
enum class MapKind { entries, projections, rows };

/// Feature f is a function of entry f of the row. The map provides
///   L feature(L x)                returns the feature
///   L backward(L x, L d_feature)  returns ∂ loss / ∂ x from d_feature = ∂ loss / ∂ feature
struct EntryMap {
  static constexpr MapKind kind = MapKind::entries;
  static constexpr std::int64_t count(std::int64_t d) { return d; }
};

/// Where a map with random projections puts the term |x'|²/2 ("half").
enum class HalfSquare {
  unused,
  in_features,  ///< keys: each log feature includes -|k'|²/2; queries: the row logarithm includes -|q'|²/2
  in_row_log    ///< queries and keys: the row logarithm includes +|x'|²/2
};

/// Features are functions of u = ω_f·x. x is not yet scaled: with 16-bit x every term of the sum is exact in float32.
/// c.factor scales u afterwards. A map with one feature per projection provides
///   L feature(const MapNumbers<L>& c, L u, L square, L shift)   returns feature f
///   L backward(const MapNumbers<L>& c, L feature, L d_feature)  returns ∂ loss / ∂ (factor · u); without it that is
///                                                               d_feature
/// A map with two features per projection, at f and n_projections + f, provides
///   Pair<L> features(const MapNumbers<L>& c, L u, L shift)      returns both
///   L backward(Pair<L> features, Pair<L> d_features)            returns ∂ loss / ∂ (factor · u)
/// square is |ω_f|² for maps that need oprf_a; other maps ignore it. shift is |k'|²/2 for keys with
/// HalfSquare::in_features, otherwise 0.
struct ProjectionMap {
  static constexpr MapKind kind = MapKind::projections;
  static constexpr HalfSquare half_square = HalfSquare::unused;
};

/// Features need the whole row. The map provides count(d), which returns the number of features, and arithmetic for
/// each device:
///   on the CPU  void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* features)
///               void backward(tile, x, rows, const T* features, T* d_features, T* d_x)
///   on GPUs     void features(const GpuFeatureRows<T>& rows, const T* x, T* features)
///               void backward(rows, x, const T* features, T* d_features, T* d_x)
/// The CPU's process `rows` rows: x and d_x [rows, d] with row stride tile.ld_x, features and d_features [rows, m] with
/// row stride tile.ld_m. A GPU's process one row with the 32 lanes of a warp. Both overwrite features and d_x, and may
/// overwrite d_features, the gradient of the features, as scratch.
struct RowMap {
  static constexpr MapKind kind = MapKind::rows;
};

/// Constants of a head, the same in all lanes.
template <class L>
struct MapNumbers {
  L factor;          // d^(-1/4) √(1-4A); u · factor = √(1-4A) ω_f·x'
  L oprf_a;          // A of oprf; 0 for other maps
  L kernel_epsilon;  // of favor_relu
};
/// Two features of one projection, or their gradients.
template <class L>
struct Pair {
  L first, second;
};

// ---- Row logarithms. half = |x'|²/2 of the row ----

/// Returns MapNumbers::factor. scale = d^(-1/4).
template <class T>
FURLONG_LANE_FUNCTION T projection_factor(T scale, T oprf_a) {
  return scale * static_cast<T>(std::sqrt(1 - 4 * static_cast<double>(oprf_a)));
}
/// Returns the constant part of a query's row logarithm, (d/2) log(1-4A) - log(mean_over). The kernel is a mean over
/// `mean_over` features or projections.
template <class T>
FURLONG_LANE_FUNCTION T query_constant(std::int64_t d, std::int64_t mean_over, T oprf_a) {
  const double both_sides = static_cast<double>(d) / 2 * std::log1p(-4 * static_cast<double>(oprf_a));
  return static_cast<T>(both_sides - std::log(static_cast<double>(mean_over)));
}
/// Returns the row logarithm of a query or key for the map M.
template <class M, class T>
FURLONG_LANE_FUNCTION T row_log_of(T query_constant, bool is_key, T half) {
  if constexpr (M::half_square == HalfSquare::in_row_log) return half + (is_key ? T(0) : query_constant);
  if (is_key) return T(0);
  return M::half_square == HalfSquare::in_features ? query_constant - half : query_constant;
}
/// Returns ∂ loss / ∂ half for the map M. sum_of_d_features is the sum over the gradients of a key's log features
/// (unused for queries), d_row_log the gradient of the row logarithm.
template <class M, class T>
FURLONG_LANE_FUNCTION T d_half_of(bool is_key, T sum_of_d_features, T d_row_log) {
  if constexpr (M::half_square == HalfSquare::in_row_log) return d_row_log;
  if constexpr (M::half_square == HalfSquare::unused) return T(0);
  return is_key ? -sum_of_d_features : -d_row_log;
}

#include "framework/ops/attention/feature_maps/polynomial-inl.h"

// Generated from feature_map_list.h.
#include "feature_map_files.h"

/// Calls body(Map<map>{}) for a map that is known only at run time.
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
