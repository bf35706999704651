#pragma once
// Parameter updates, below the tape. All operate element-wise on flat contiguous tensors, with the same bits for any
// number of threads.
#include <optional>

#include "framework/core/device.h"
#include "framework/core/random.h"
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Stochastic rounding of bfloat16 copies (Gupta et al. 2015, Deep Learning with Limited Numerical Precision, section
/// 3). A value is rounded up with the probability that makes the expected result equal to the value, exact to 2^-16 of
/// the distance between two bfloat16 numbers. Updates smaller than half that distance are then not lost. Element i uses
/// random_word({seed, step, stream}, first_element + i).
struct StochasticRounding {
  std::uint64_t seed = 0;
  std::uint32_t stream = random_stream("optimizer.stochastic_rounding");
  /// Index of these tensors' first element in the whole, so that a part draws the same numbers as the whole would.
  std::uint64_t first_element = 0;
};

/// Settings of one AdamW step.
struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;      ///< counted from 1, for the bias corrections 1 - beta^step
  double gradient_scale = 1;  ///< multiplies the gradients as they are read (clipping, averaging)
  /// Rounding of compute_values; by default to nearest.
  std::optional<StochasticRounding> stochastic_rounding = std::nullopt;
};

/// The numbers that change from step to step, in device memory. They are read when the update runs, not when it is
/// launched, so that a captured step can be replayed with other numbers.
struct AdamWDeviceStep {
  /// float64 [4] on the device: learning_rate, step (1 or more), gradient_scale, and 1 to skip the update (else 0).
  Tensor scalars;
};

/// One AdamW step in one pass (Loshchilov and Hutter 2019, algorithm 2, with weight decay scaled by the learning rate):
///   g = gradient_scale * d_values
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   values = values (1 - learning_rate * weight_decay) - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
/// with m_hat = m / (1 - beta1^step), v_hat = v / (1 - beta2^step). All four tensors have the same shape and are
/// float32 (or all float64, in tests). `compute_values`, if not null, receives the new values as bfloat16. Throws
/// ContractError if tensors do not match or step < 1.
void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const Tensor* compute_values = nullptr);
/// Like the function above, with the learning rate, step and gradient scale of `device_step` instead of those of
/// `settings`. Equal numbers give equal bits. A skipped step leaves all tensors unchanged, including compute_values.
void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const AdamWDeviceStep& device_step,
                const Tensor* compute_values = nullptr);

/// compute_values = values, rounded exactly as adamw_step() rounds in step number `step`. For recreating copies later.
/// values float32 and compute_values bfloat16, of one shape, contiguous. Throws ContractError if tensors do not match
/// or step < 1.
void round_stochastically(const Stream& stream, const Tensor& compute_values, const Tensor& values,
                          const StochasticRounding& rounding, std::int64_t step);

/// Updates an EMA in place: average = decay * average + (1 - decay) * values; both float32 or both float64. Does
/// nothing if `device_step` is given and skipped.
void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay,
                const AdamWDeviceStep* device_step = nullptr);

}  // namespace furlong::ops
