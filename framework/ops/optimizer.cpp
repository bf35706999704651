#include "framework/ops/optimizer.h"

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void adamw_step_cpu(const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
                    const AdamWStep& settings, const Tensor& compute_values);
void ema_update_cpu(const Tensor& average, const Tensor& values, double decay);

namespace {
void check_same(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
  require(tensor.shape() == like.shape() && tensor.dtype() == like.dtype() && tensor.is_contiguous(),
          "{}: {} is {} {}, expected contiguous {} {}", op, name, name_of(tensor.dtype()), tensor.shape().text(), name_of(like.dtype()),
          like.shape().text());
}
void check_master(const char* op, const Tensor& tensor) {
  require(tensor.is_contiguous() && (tensor.dtype() == DType::float32 || tensor.dtype() == DType::float64),
          "{}: {} {}, expected contiguous float32 or float64", op, name_of(tensor.dtype()), tensor.shape().text());
}
}  // namespace

void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
                const AdamWStep& settings, const Tensor* compute_values) {
  check_master("adamw_step", values);
  check_same("adamw_step", "d_values", d_values, values);
  check_same("adamw_step", "first_moment", first_moment, values);
  check_same("adamw_step", "second_moment", second_moment, values);
  require(settings.step >= 1, "adamw_step: step {}, expected 1 or more", settings.step);
  if (compute_values) {
    require(compute_values->dtype() == DType::bfloat16 && compute_values->shape() == values.shape() && compute_values->is_contiguous(),
            "adamw_step: compute_values are {} {}, expected contiguous bfloat16 {}", name_of(compute_values->dtype()),
            compute_values->shape().text(), values.shape().text());
    require(values.dtype() == DType::float32, "adamw_step: bfloat16 copies are made of float32 values, not of {}", name_of(values.dtype()));
  }
  if (!runs_on_cpu(stream, "adamw_step")) return;
  adamw_step_cpu(values, d_values, first_moment, second_moment, settings, compute_values ? *compute_values : Tensor{});
}

void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay) {
  check_master("ema_update", average);
  check_same("ema_update", "values", values, average);
  require(decay >= 0 && decay <= 1, "ema_update: decay {}, expected 0 to 1", decay);
  if (runs_on_cpu(stream, "ema_update")) ema_update_cpu(average, values, decay);
}

}  // namespace furlong::ops
