#include "framework/cuda/kernels/kernel.h"

#include "framework/cuda/kernels/row_integers.cuh"
#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/loss/element_loss_rows.h"

namespace furlong::ops {
namespace FURLONG_GPU {

template <class C, class G>
struct ElementLossPointers {
  const C* logits;
  const float* values;
  std::int64_t first_row, outputs;
  std::int64_t stride, d_stride;  // row strides of logits and d_logits
  const C* inverse_normalizer;
  C* row_losses;
  std::int32_t* correct;  // or null
  G* d_logits;            // or null; may be the logits
  bool binary;
};

/// One block for each row.
template <class C, class G>
__global__ void __launch_bounds__(1024) element_loss_rows_kernel(ElementLossPointers<C, G> work, RowIntegers targets) {
  const std::int64_t row = work.first_row + blockIdx.x;
  const std::int32_t target = targets[row];
  const C* logits = work.logits + blockIdx.x * work.stride;
  const float* values = work.values + row * work.outputs;
  G* d_logits = work.d_logits != nullptr ? work.d_logits + blockIdx.x * work.d_stride : nullptr;
  // The row is ignored; or the target is invalid, which must show as NaN.
  const bool counts = target == 0;
  const C nothing = target == -1 ? C(0) : std::numeric_limits<C>::quiet_NaN();
  const C inverse_outputs = C(1) / static_cast<C>(work.outputs);
  const C factor = work.inverse_normalizer[0] * inverse_outputs;
  C sum = 0;
  int wrong = 0;
  for (std::int64_t k = threadIdx.x; k < work.outputs; k += blockDim.x) {
    const C x = logits[k], value = static_cast<C>(values[k]);
    C loss = (x - value) * (x - value), gradient = 2 * (x - value);
    if (work.binary) {
      const C small = gpu_exp(x >= C(0) ? -x : x);  // both forms of the sigmoid then stay accurate
      loss = (x >= C(0) ? x : C(0)) - x * value + gpu_log1p(small);
      gradient = (x >= C(0) ? C(1) : small) / (C(1) + small) - value;
      wrong += (x > C(0)) != (value > C(0.5)) ? 1 : 0;
    }
    sum += loss;
    if (d_logits != nullptr) d_logits[k] = from_compute<G>(counts ? gradient * factor : nothing);
  }
  sum = block_sum(sum);
  wrong = block_sum(wrong);
  if (threadIdx.x > 0) return;
  work.row_losses[row] = counts ? sum * inverse_outputs : nothing;
  if (work.correct != nullptr) work.correct[row] = counts && work.binary && wrong == 0 ? 1 : 0;
}

template <class C, class G>
void launch_rows(const Stream& stream, const ElementLossRows& rows) {
  const CrossEntropyRows& chunk = rows.chunk;
  const std::int64_t count = chunk.logits.extent(0), outputs = chunk.logits.extent(1);
  if (count == 0) return;
  const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(outputs, 32), 32);
  const ElementLossPointers<C, G> work{gpu_data<C>(chunk.logits),
                                       reinterpret_cast<const float*>(gpu_data<std::int32_t>(rows.values)),
                                       chunk.first_row,
                                       outputs,
                                       chunk.logits.strides()[0],
                                       chunk.d_logits.defined() ? chunk.d_logits.strides()[0] : 0,
                                       gpu_data<C>(chunk.inverse_normalizer),
                                       gpu_data<C>(chunk.row_losses),
                                       gpu_data<std::int32_t>(chunk.correct),
                                       gpu_data<G>(chunk.d_logits),
                                       rows.kind == ElementLoss::binary_cross_entropy};
  launch(stream, element_loss_rows_kernel<C, G>, grid_blocks(count, 1), threads, 0, work, RowIntegers(chunk.targets));
}

void element_loss_rows(const Stream& stream, const ElementLossRows& rows) {
  const CrossEntropyRows& chunk = rows.chunk;
  if (chunk.logits.dtype() == DType::float64) {
    launch_rows<double, double>(stream, rows);
  } else if (chunk.d_logits.defined() && chunk.d_logits.dtype() == DType::bfloat16) {
    launch_rows<float, __nv_bfloat16>(stream, rows);
  } else {
    launch_rows<float, float>(stream, rows);
  }
}

const GpuKernelRegistration element_loss_rows_registration{element_loss_rows_gpu, &element_loss_rows};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
