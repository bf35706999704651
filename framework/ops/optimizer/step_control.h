#pragma once
// Decisions of a training step (clip gradients, or skip the update), made on the device that holds the gradients. The
// host does not wait, and a captured step can be replayed with other numbers.
#include "framework/core/tensor.h"
#include "framework/ops/optimizer/optimizer.h"

namespace furlong::ops {

/// Indices into the numbers of a step.
enum StepNumber : int {
  step_learning_rate,      ///< the first four are AdamWDeviceStep's scalars
  step_number,             ///< number of the update, from 1
  step_gradient_scale,     ///< output of control_step()
  step_skipped,            ///< output of control_step(): 1 or 0
  step_gradient_clip,      ///< gradients are scaled down to this norm; 0: no clipping
  step_outlier_threshold,  ///< a norm above it skips the update; 0: no threshold
  step_normalizer,         ///< divisor of the sum of losses: the number of targets of the step
  step_of_run,             ///< number of earlier optimizer steps, skipped ones included; keys random numbers
  step_loss,               ///< summed by the caller, over ranks too
  step_stops,              ///< number of ranks that were asked to stop, summed by the caller; not used here
  step_sum_of_squares,     ///< of all gradients
  step_gradient_norm,      ///< output of control_step(): the square root of step_sum_of_squares
  step_numbers
};

/// Returns the first four of `numbers` as the argument of adamw_step().
inline AdamWDeviceStep adamw_numbers(const Tensor& numbers) { return {numbers.narrow(0, 0, 4)}; }

/// Writes the gradient norm, the gradient scale, and whether to skip the update: if the loss or the norm is not finite,
/// or the norm exceeds the threshold. numbers: float64 [step_numbers]. Throws ContractError for any other tensor.
void control_step(const Stream& stream, const Tensor& numbers);

}  // namespace furlong::ops
