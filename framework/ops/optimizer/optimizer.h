#pragma once
// Updates of parameters, below the tape. All work on flat contiguous tensors and are element-wise: the same for any
// number of threads.
#include <optional>

#include "framework/core/device.h"
#include "framework/core/random.h"
#include "framework/core/tensor.h"

namespace furlong::ops {

/// How bfloat16 copies are rounded at random instead of to the nearest, so that steps smaller than half the distance of
/// two bfloat16 numbers are not lost but made now and then (Gupta et al. 2015, Deep Learning with Limited Numerical
/// Precision, section 3): the upper neighbour is taken with the probability that makes the mean the value itself, exact
/// to 2^-16 of that distance. Element i draws random_word({seed, step, stream}, first_element + i).
struct StochasticRounding {
  std::uint64_t seed = 0;
  std::uint32_t stream = random_stream("optimizer.stochastic_rounding");
  std::uint64_t first_element = 0;  ///< of these tensors, in the whole: parts of it then draw what the whole would
};

struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;      ///< counted from 1, for the bias corrections 1 - beta^step
  double gradient_scale = 1;  ///< gradients are multiplied by it as they are read (clipping, averaging)
  std::optional<StochasticRounding> stochastic_rounding =
      std::nullopt;  ///< of compute_values; without it they are the nearest
};

/// What changes from step to step, read from the device's memory when the update runs, not when it is launched: a
/// captured step can be replayed with other numbers.
struct AdamWDeviceStep {
  /// float64 [4] on the device: learning_rate, step (1 or more), gradient_scale, and 1 where nothing is to be updated
  /// (else 0).
  Tensor scalars;
};

/// One AdamW step (Loshchilov and Hutter 2019, algorithm 2, the decay scaled by the learning rate) in one pass:
///   g = gradient_scale * d_values
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   values = values (1 - learning_rate * weight_decay) - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
/// with m_hat = m / (1 - beta1^step), v_hat = v / (1 - beta2^step). All four tensors have the same shape and are
/// float32 (or all float64, in tests). `compute_values`, when given, receives the new values as bfloat16. Throws
/// ContractError on tensors that do not fit or step < 1.
void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const Tensor* compute_values = nullptr);
/// The same with the learning rate, step and gradient scale of `device_step` instead of those of `settings`: the same
/// bits for the same numbers. A step that is skipped leaves all tensors as they are, compute_values too.
void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const AdamWDeviceStep& device_step,
                const Tensor* compute_values = nullptr);

/// compute_values = values, rounded at random as adamw_step() number `step` rounds its results: the same bits where the
/// values are the same. For copies that have to be made again later. values float32, compute_values bfloat16, of one
/// shape, both contiguous. Throws ContractError on other tensors or step < 1.
void round_stochastically(const Stream& stream, const Tensor& compute_values, const Tensor& values,
                          const StochasticRounding& rounding, std::int64_t step);

/// average = decay * average + (1 - decay) * values; both float32 or both float64. With `device_step`, nothing where
/// that is skipped.
void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay,
                const AdamWDeviceStep* device_step = nullptr);

}  // namespace furlong::ops
