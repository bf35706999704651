#pragma once
#include <bit>

#include "framework/core/tensor.h"
#include "framework/ops/optimizer/optimizer.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Indices into AdamWDeviceStep::scalars.
enum AdamWScalar : int { scalar_learning_rate, scalar_step, scalar_gradient_scale, scalar_skipped, adamw_scalars };

/// See adamw_step(). `scalars` is AdamWDeviceStep::scalars; if undefined, the numbers of `settings` are used. If
/// `compute_values` is undefined, no copy is written.
void adamw_step_cpu(const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                    const Tensor& second_moment, const AdamWStep& settings, const Tensor& scalars,
                    const Tensor& compute_values);
/// See round_stochastically().
void round_stochastically_cpu(const Tensor& compute_values, const Tensor& values, const StochasticRounding& rounding,
                              std::int64_t step);
/// See ema_update(). If `scalars` is undefined, the EMA is always updated.
void ema_update_cpu(const Tensor& average, const Tensor& values, double decay, const Tensor& scalars);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*values*/, const Tensor& /*d_values*/, const Tensor& /*first_moment*/,
                 const Tensor& /*second_moment*/, const AdamWStep&, const Tensor& /*scalars*/,
                 const Tensor& /*compute_values*/>
    adamw_step_gpu{"adamw_step"};
inline GpuKernel<const Tensor& /*compute_values*/, const Tensor& /*values*/, const StochasticRounding&,
                 std::int64_t /*step*/>
    round_stochastically_gpu{"round_stochastically"};
inline GpuKernel<const Tensor& /*average*/, const Tensor& /*values*/, double /*decay*/, const Tensor& /*scalars*/>
    ema_update_gpu{"ema_update"};

/// Returns the bits of one of the two bfloat16 neighbours of `value`. It is the one away from zero if the upper half of
/// `word` plus the low 16 bits of `value` is at least 2^16. Bfloat16 numbers, infinities and NaNs are unchanged.
constexpr std::uint16_t stochastic_bfloat16(float value, std::uint32_t word) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // A NaN must not be carried into another number, nor lose its payload and become an infinity.
  return static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : (bits + (word >> 16)) >> 16);
}

}  // namespace furlong::ops
