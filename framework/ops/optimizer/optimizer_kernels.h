#pragma once
#include <bit>

#include "framework/core/tensor.h"
#include "framework/ops/optimizer/optimizer.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Indices into AdamWDeviceStep::scalars.
enum AdamWScalar : int { scalar_learning_rate, scalar_step, scalar_gradient_scale, scalar_skipped, adamw_scalars };

/// Updates values and both moments in place; see adamw_step(). All tensors are flat, contiguous and of one size.
///   scalars         AdamWDeviceStep::scalars, float64 [4]. Undefined: the numbers of `settings` are used
///   compute_values  bfloat16, overwritten with the new values. Undefined: no copy is written
void adamw_step_cpu(const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                    const Tensor& second_moment, const AdamWStep& settings, const Tensor& scalars,
                    const Tensor& compute_values);
/// Overwrites compute_values (bfloat16) with rounded values (float32); see round_stochastically().
void round_stochastically_cpu(const Tensor& compute_values, const Tensor& values, const StochasticRounding& rounding,
                              std::int64_t step);
/// Updates `average` in place; see ema_update(). Does nothing if scalars[scalar_skipped] is not 0. If `scalars` is
/// undefined, the EMA is always updated.
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

/// Returns `value` rounded to one of its two bfloat16 neighbors, as bits. With a uniformly random 32-bit `word`, the
/// result is the neighbor away from zero with probability (low 16 bits of value) / 2^16: if these bits plus the upper
/// half of `word` reach 2^16. Bfloat16 numbers and infinities are unchanged; a NaN stays a NaN.
constexpr std::uint16_t stochastic_bfloat16(float value, std::uint32_t word) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // A NaN must not be carried into another number, nor lose its payload and become an infinity.
  return static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : (bits + (word >> 16)) >> 16);
}

}  // namespace furlong::ops
