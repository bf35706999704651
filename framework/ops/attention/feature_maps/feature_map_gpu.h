#pragma once
// Feature maps of whole rows on GPUs, separate from attention: for tests and benchmarks of the maps. Attention's
// kernels compute the same functions tile by tile.
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// The map of one head. All tensors of a call are contiguous and on the stream's device, and have one dtype: float32 or
/// float64.
struct FeatureMapCall {
  FeatureMap map = FeatureMap::elu1;
  FeatureMapOptions options{};
  /// Random projection ω [n_projections, d], for maps with FeatureMapInfo::needs_random_projection (favor_* and oprf);
  /// otherwise undefined.
  Tensor random_projection;
  double oprf_a = 0;    ///< oprf: the constant A <= 0 of this head; other maps ignore it
  bool is_key = false;  ///< true: rows of x are keys; false: queries. Several maps treat the two differently.
};

/// Overwrites features [rows, m] with the features of x [rows, d]; m = feature_count(map, options, d, n_projections).
/// Also overwrites row_log [rows], the logarithm of a factor per row that the features leave out, unless the tensor is
/// undefined.
/// FeatureMapFunctions (feature_map_cpu.h) defines both; its `features` is the CPU kernel. Throws ContractError if x
/// and features are not contiguous matrices with equal numbers of rows.
inline GpuKernel<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
                 const Tensor& /*row_log*/>
    feature_map_features_gpu{"feature_map"};
/// Overwrites d_x [rows, d] with the gradient of the loss with respect to x. `features` [rows, m] is the output of
/// feature_map_features_gpu for the same x. d_features [rows, m] and d_row_log [rows] are the gradients of that call's
/// outputs; an undefined d_row_log is a zero gradient. The call overwrites d_features: it is scratch memory.
inline GpuKernel<const FeatureMapCall& /*call*/, const Tensor& /*x*/, const Tensor& /*features*/,
                 const Tensor& /*d_features*/, const Tensor& /*d_row_log*/, const Tensor& /*d_x*/>
    feature_map_backward_gpu{"feature_map"};

}  // namespace furlong::ops
