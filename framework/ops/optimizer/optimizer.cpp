#include "framework/ops/optimizer/optimizer.h"

#include "framework/ops/optimizer/optimizer_kernels.h"

namespace furlong::ops {

namespace {
void check_same(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
  require(tensor.shape() == like.shape() && tensor.dtype() == like.dtype() && tensor.is_contiguous(),
          "{}: {} is {} {}, expected contiguous {} {}", op, name, name_of(tensor.dtype()), tensor.shape().text(),
          name_of(like.dtype()), like.shape().text());
}
void check_master(const char* op, const Tensor& tensor) {
  require(tensor.is_contiguous() && (tensor.dtype() == DType::float32 || tensor.dtype() == DType::float64),
          "{}: values are {} {}, expected contiguous float32 or float64", op, name_of(tensor.dtype()),
          tensor.shape().text());
}
void check_scalars(const char* op, const Tensor& scalars) {
  require(scalars.defined() && scalars.dtype() == DType::float64 && scalars.shape() == Shape({adamw_scalars}) &&
              scalars.is_contiguous(),
          "{}: scalars are {} {}, expected float64 [{}]", op, name_of(scalars.dtype()), scalars.shape().text(),
          +adamw_scalars);
}

void check_copies(const char* op, const Tensor& compute_values, const Tensor& values) {
  require(compute_values.dtype() == DType::bfloat16 && compute_values.shape() == values.shape() &&
              compute_values.is_contiguous(),
          "{}: compute_values are {} {}, expected contiguous bfloat16 {}", op, name_of(compute_values.dtype()),
          compute_values.shape().text(), values.shape().text());
  require(values.dtype() == DType::float32, "{}: values are {}, expected float32 for bfloat16 copies", op,
          name_of(values.dtype()));
}

void check_adamw(const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
                 const Tensor* compute_values) {
  check_master("adamw_step", values);
  check_same("adamw_step", "d_values", d_values, values);
  check_same("adamw_step", "first_moment", first_moment, values);
  check_same("adamw_step", "second_moment", second_moment, values);
  if (compute_values) check_copies("adamw_step", *compute_values, values);
}
}  // namespace

void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const Tensor* compute_values) {
  check_adamw(values, d_values, first_moment, second_moment, compute_values);
  require(settings.step >= 1, "adamw_step: step {}, expected 1 or more", settings.step);
  dispatch_kernel(stream, adamw_step_cpu, adamw_step_gpu, values, d_values, first_moment, second_moment, settings,
                  Tensor{}, compute_values ? *compute_values : Tensor{});
}

void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const AdamWDeviceStep& device_step,
                const Tensor* compute_values) {
  check_adamw(values, d_values, first_moment, second_moment, compute_values);
  check_scalars("adamw_step", device_step.scalars);
  dispatch_kernel(stream, adamw_step_cpu, adamw_step_gpu, values, d_values, first_moment, second_moment, settings,
                  device_step.scalars, compute_values ? *compute_values : Tensor{});
}

void round_stochastically(const Stream& stream, const Tensor& compute_values, const Tensor& values,
                          const StochasticRounding& rounding, std::int64_t step) {
  check_master("round_stochastically", values);
  check_copies("round_stochastically", compute_values, values);
  require(step >= 1, "round_stochastically: step {}, expected 1 or more", step);
  dispatch_kernel(stream, round_stochastically_cpu, round_stochastically_gpu, compute_values, values, rounding, step);
}

void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay,
                const AdamWDeviceStep* device_step) {
  check_master("ema_update", average);
  check_same("ema_update", "values", values, average);
  require(decay >= 0 && decay <= 1, "ema_update: decay {}, expected 0 to 1", decay);
  if (device_step) check_scalars("ema_update", device_step->scalars);
  dispatch_kernel(stream, ema_update_cpu, ema_update_gpu, average, values, decay,
                  device_step ? device_step->scalars : Tensor{});
}

}  // namespace furlong::ops
