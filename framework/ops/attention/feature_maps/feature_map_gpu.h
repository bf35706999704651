#pragma once
// Feature maps of whole rows on GPUs, as attention's kernels compute them tile by tile: for tests and measurements of
// the maps alone.
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// One head's map. Rows are contiguous, of float32 or float64, all tensors of one dtype.
struct FeatureMapCall {
  FeatureMap map = FeatureMap::elu1;
  FeatureMapOptions options{};
  Tensor directions;  ///< ω [n_directions, d] where the map needs them
  double oprf_a = 0;
  bool is_key = false;
};

/// features [rows, m] and, where defined, row_log [rows] of x [rows, d]: what FeatureMapFunctions::features gives on
/// the CPU.
inline GpuBody<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
               const Tensor& /*row_log*/>
    feature_map_features_gpu{"feature_map"};
/// d_x [rows, d], overwritten, from the features of x, from d_features [rows, m], which are used up, and, where
/// defined, from d_row_log [rows].
inline GpuBody<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
               const Tensor& /*d_features*/, const Tensor& /*d_row_log*/, const Tensor& /*d_x*/>
    feature_map_backward_gpu{"feature_map"};

}  // namespace furlong::ops
