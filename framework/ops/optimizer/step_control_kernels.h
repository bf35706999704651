#pragma once
#include "framework/ops/optimizer/step_control.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Makes the decision, for all engines: sets gradient norm, gradient scale and skip flag in `numbers`, which has
/// step_numbers elements (StepNumber). `root` is the gradient norm, the square root of the sum of squares. `finite`:
/// whether loss and norm are finite.
constexpr void decide_step(double* numbers, double root, bool finite) {
  numbers[step_gradient_norm] = root;
  const double clip = numbers[step_gradient_clip], threshold = numbers[step_outlier_threshold];
  numbers[step_gradient_scale] = clip > 0 && root > clip ? clip / root : 1.0;
  numbers[step_skipped] = !finite || (threshold > 0 && root > threshold) ? 1.0 : 0.0;
}

/// Updates numbers, float64 [step_numbers], in place; see control_step().
void control_step_cpu(const Tensor& numbers);
/// CUDA kernel with the same argument and results.
inline GpuKernel<const Tensor& /*numbers*/> control_step_gpu{"control_step"};

}  // namespace furlong::ops
