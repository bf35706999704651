#pragma once
// The interface of the feature maps' CPU kernels, which work on one tile of rows at a time.
#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::ops {

/// One head's constants and the layout of its tiles. T is float or double.
template <class T>
struct FeatureTile {
  std::int64_t d = 0, m = 0;  // width of a head, number of features
  std::int64_t n_projections = 0;
  /// Elements from one row to the next of [rows, d] and [rows, m] tiles: multiples of 16.
  std::int64_t ld_x = 0, ld_m = 0;
  std::int64_t ld_directions = 0;            // elements from one row to the next of directions_transposed
  const T* random_projection = nullptr;      // ω [n_projections, d], rows d apart
  const T* directions_transposed = nullptr;  // ωᵀ [d, n_projections], rows ld_directions apart, zero-padded
  const T* direction_norms = nullptr;        // |ω_f|² [n_projections]
  T scale = 1;                               // applied to both q and k: d^(-1/4)
  T oprf_a = 0;                              // A of this head
  T kernel_epsilon = 0;
  std::int64_t order = 0;
  T* scratch = nullptr;  // at least rows × (ld_m + ld_x) elements
};

/// Functions of one map. Columns of a tile beyond m (up to ld_m) need not be written, and callers do not read them.
///
/// The row logarithm `row_log`: in the form `values` the features are φ(x) = values · exp(row_log). In the form
/// `logarithms` a key's row_log is zero. A query's row_log holds the terms of the kernel's logarithm that features
/// leave out because they cancel in the ratio: Σ_f φ_f(q) φ_f(k) exp(row_log(q)) is the kernel itself, including its
/// constants such as log m. Callers that do not need row_log pass null.
template <class T>
struct FeatureMapFunctions {
  void (*features)(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,
                   T* row_log) = nullptr;
  /// Overwrites d_x [rows, d] with the gradient from d_features [rows, m] (∂ loss / ∂ logarithms or ∂ loss / ∂ values)
  /// and d_row_log [rows] (null: none). `features` is the output of `features()` for the same rows. d_features may be
  /// used as scratch.
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
