#pragma once
// The interface of the feature maps' CPU kernels, which work on one tile of rows at a time.
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/simd/bfloat16_products.h"

namespace furlong::ops {

/// One head's constants and the layout of its tiles. A tile holds consecutive rows of x [rows, d], of their features
/// [rows, m], or of gradients of either. T is float or double.
template <class T>
struct FeatureTile {
  std::int64_t d = 0, m = 0;  // width of a head, number of features
  std::int64_t n_projections = 0;
  std::int64_t ld_x = 0, ld_m = 0;  // row strides of [rows, d] and [rows, m] tiles, in elements: multiples of 16
  std::int64_t ld_directions = 0;   // row stride of directions_transposed, in elements
  // The next three are for maps with random projections; otherwise null.
  const T* random_projection = nullptr;      // ω [n_projections, d], row stride d
  const T* directions_transposed = nullptr;  // ωᵀ [d, n_projections], row stride ld_directions, zero-padded
  const T* direction_norms = nullptr;        // |ω_f|² [n_projections]
  T scale = 1;                               // d^(-1/4), applied to both q and k
  T oprf_a = 0;                              // A of this head, for oprf
  T kernel_epsilon = 0;                      // for favor_relu
  std::int64_t order = 0;                    // for taylor and limit
  T* scratch = nullptr;                      // at least rows × (ld_m + ld_x) elements, overwritten
  /// Kernels of products in bfloat16, with ω and ωᵀ packed as right operands: pairs [pairs_of(n_projections), ld_x] and
  /// [pairs_of(d), ld_directions]. Null: products in float32.
  const simd::BFloat16Products* bfloat16 = nullptr;
  const simd::BFloat16Pair *packed_directions = nullptr, *packed_directions_transposed = nullptr;
};

/// Functions of one map φ. x and d_x are tiles [rows, d], features and d_features tiles [rows, m]. The rows are all
/// keys (`is_key`) or all queries of one head. Columns of a tile beyond m (up to ld_m) need not be written, and callers
/// do not read them.
///
/// The form of a map (FeatureForm) says what its features are:
///   logarithms  log φ_f(x)
///   values      φ_f(x) exp(-row_log(x))
/// row_log [rows] is one logarithm per row. With `values` it is a factor of the row's features, which keeps them within
/// range. With `logarithms` a key's is zero, and a query's holds the terms that cancel in the ratio of attention, such
/// as -|q'|²/2 and -log m: Σ_f φ_f(q) φ_f(k) exp(row_log(q)) is the kernel itself. Callers that do not need it pass
/// null.
template <class T>
struct FeatureMapFunctions {
  /// Overwrites features and, if not null, row_log.
  void (*features)(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                   T* row_log) = nullptr;
  /// Overwrites d_x with ∂ loss / ∂ x. d_features is ∂ loss / ∂ features and may be overwritten as scratch; d_row_log
  /// [rows] is ∂ loss / ∂ row_log (null: zero). `features` is the output of `features()` for the same rows.
  void (*backward)(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* features,
                   T* d_features, const T* d_row_log, T* d_x) = nullptr;
};

/// Returns the functions compiled for this CPU's instruction set. T is float or double.
template <class T>
FeatureMapFunctions<T> feature_map_functions_cpu(FeatureMap map);
template <>
FeatureMapFunctions<float> feature_map_functions_cpu<float>(FeatureMap map);
template <>
FeatureMapFunctions<double> feature_map_functions_cpu<double>(FeatureMap map);

}  // namespace furlong::ops
