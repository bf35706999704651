#include "framework/cuda/kernels/kernel.h"
#include "framework/ops/optimizer/step_control_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

__global__ void __launch_bounds__(32) control_step_kernel(double* numbers) {
  if (threadIdx.x != 0) return;
  const double root = gpu_sqrt(numbers[step_sum_of_squares]), loss = numbers[step_loss];
  // Infinity minus infinity and NaN minus NaN are NaN, so the difference is 0 only for finite numbers.
  decide_step(numbers, root, root - root == 0 && loss - loss == 0);
}

}  // namespace

void control_step(const Stream& stream, const Tensor& numbers) {
  launch(stream, control_step_kernel, 1, 32, 0, gpu_data<double>(numbers));
}

const GpuKernelRegistration control_step_registration{control_step_gpu, &control_step};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
