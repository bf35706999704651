#pragma once
// Feature maps of whole rows on GPUs, separate from attention: for tests and benchmarks of the maps. Attention's
// kernels compute the same functions tile by tile.
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// One head's map. Rows are contiguous; all tensors have one dtype, float32 or float64.
struct FeatureMapCall {
  FeatureMap map = FeatureMap::elu1;
  FeatureMapOptions options{};
  Tensor random_projection;  ///< ω [n_directions, d] if the map needs it
  double oprf_a = 0;
  bool is_key = false;
};

/// Computes features [rows, m] and, if defined, row_log [rows] of x [rows, d], like FeatureMapFunctions::features on
/// the CPU.
inline GpuKernel<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
                 const Tensor& /*row_log*/>
    feature_map_features_gpu{"feature_map"};
/// Overwrites d_x [rows, d] with the gradient from features, d_features [rows, m] and, if defined, d_row_log [rows].
/// d_features is used as scratch.
inline GpuKernel<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
                 const Tensor& /*d_features*/, const Tensor& /*d_row_log*/, const Tensor& /*d_x*/>
    feature_map_backward_gpu{"feature_map"};

}  // namespace furlong::ops
