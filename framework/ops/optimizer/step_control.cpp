#include "framework/ops/optimizer/step_control.h"

#include <cmath>

#include "framework/ops/optimizer/step_control_kernels.h"

namespace furlong::ops {

void control_step_cpu(const Tensor& numbers) {
  double* n = numbers.data<double>();
  const double root = std::sqrt(n[step_sum_of_squares]);
  decide_step(n, root, std::isfinite(root) && std::isfinite(n[step_loss]));
}

void control_step(const Stream& stream, const Tensor& numbers) {
  require(numbers.dtype() == DType::float64 && numbers.shape() == Shape({step_numbers}) && numbers.is_contiguous(),
          "control_step: numbers are {} {}, expected float64 [{}]", name_of(numbers.dtype()), numbers.shape().text(),
          +step_numbers);
  dispatch_kernel(stream, control_step_cpu, control_step_gpu, numbers);
}

}  // namespace furlong::ops
