#pragma once
// Updates of parameters, below the tape. All work on flat contiguous tensors and are element-wise: the same for any number of threads.
#include "framework/core/device.h"
#include "framework/core/tensor.h"

namespace furlong::ops {

struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;      ///< counted from 1, for the bias corrections 1 - beta^step
  double gradient_scale = 1;  ///< gradients are multiplied by it as they are read (clipping, averaging)
};

/// One AdamW step (Loshchilov and Hutter 2019, algorithm 2, the decay scaled by the learning rate) in one pass:
///   g = gradient_scale * d_values
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
///   values = values (1 - learning_rate * weight_decay) - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
/// with m_hat = m / (1 - beta1^step), v_hat = v / (1 - beta2^step). All four tensors have the same shape and are float32 (or all float64,
/// in tests). `compute_values`, when given, receives the new values as bfloat16. Throws ContractError on tensors that do not fit or step
/// < 1.
void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
                const AdamWStep& settings, const Tensor* compute_values = nullptr);

/// average = decay * average + (1 - decay) * values; both float32 or both float64.
void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay);

}  // namespace furlong::ops
