#pragma once
// What a training step decides from its own results (clip, or skip the update), decided where the gradients are: the
// host waits for nothing, and a step that was captured can be replayed with other numbers.
#include "framework/core/tensor.h"
#include "framework/ops/optimizer/optimizer.h"

namespace furlong::ops {

/// Places in the numbers of a step.
enum StepNumber : int {
  step_learning_rate,      ///< the first four are AdamWDeviceStep's scalars
  step_number,             ///< the update's number, from 1
  step_gradient_scale,     ///< found here
  step_skipped,            ///< found here: 1 or 0
  step_gradient_clip,      ///< gradients are scaled down to this norm; 0: never
  step_outlier_threshold,  ///< a norm above it skips the update; 0: none does
  step_normalizer,         ///< what the losses' sum is divided by: the step's targets
  step_of_run,             ///< optimizer steps before this one, skipped ones included: keys random numbers
  step_loss,               ///< summed by the caller, over processes too
  step_stops,              ///< likewise: processes that were asked to stop; nothing is made of it here
  step_sum_of_squares,     ///< of all gradients
  step_gradient_norm,      ///< found here: its square root
  step_numbers
};

/// The first four of `numbers` as adamw_step takes them.
inline AdamWDeviceStep adamw_numbers(const Tensor& numbers) { return {numbers.narrow(0, 0, 4)}; }

/// Fills in gradient norm, gradient scale, and whether the update is to be skipped: where loss or norm are not finite,
/// or the norm is above the threshold. numbers: float64 [step_numbers]. Throws ContractError on another tensor.
void control_step(const Stream& stream, const Tensor& numbers);

}  // namespace furlong::ops
