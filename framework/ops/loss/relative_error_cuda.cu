#include "framework/cuda/kernels/kernel.h"

#include "framework/cuda/kernels/row_integers.cuh"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/loss/relative_error_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr std::int64_t max_blocks =
    1024;  // all with the same number of chunks, so that the order of sums depends only on the sizes

/// partial [blocks, 2] = the sums of |x - reference|² and |reference|² over chunks [block * per_block, (block + 1) *
/// per_block).
template <class T>
__global__ void __launch_bounds__(span_threads)
    sum_errors_kernel(const T* x, const T* reference, RowIntegers mask, double* partial, std::int64_t per_block,
                      SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t begin = blockIdx.x * per_block, end = gpu_min(begin + per_block, layout.chunks);
  double error = 0, size = 0;
  for (std::int64_t index = begin + threadIdx.x; index < end; index += span_threads) {
    const auto chunk = span_chunk<width>(layout, index);
    if (mask.given() && mask[chunk.row] == 0) continue;
    Compute values[width], against[width];
    read_chunk<width>(x + chunk.offsets[0], chunk.size, chunk.vectors, values);
    read_chunk<width>(reference + chunk.offsets[1], chunk.size, chunk.vectors, against);
    Compute chunk_error = 0, chunk_size = 0;
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) {
      const Compute difference = values[i] - against[i];
      chunk_error = gpu_fma(difference, difference, chunk_error);
      chunk_size = gpu_fma(against[i], against[i], chunk_size);
    }
    error += static_cast<double>(chunk_error);
    size += static_cast<double>(chunk_size);
  }
  error = block_sum(error);
  size = block_sum(size);
  if (threadIdx.x > 0) return;
  partial[2 * std::int64_t{blockIdx.x}] = error;
  partial[2 * std::int64_t{blockIdx.x} + 1] = size;
}

/// Runs as one block.
template <class C>
__global__ void __launch_bounds__(span_threads)
    divide_errors_kernel(const double* partial, int blocks, double* sums, C* loss) {
  double error = 0, size = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += span_threads) {
    error += partial[2 * i];
    size += partial[2 * i + 1];
  }
  error = block_sum(error);
  size = block_sum(size);
  if (threadIdx.x > 0) return;
  sums[0] = error;
  sums[1] = size;
  *loss = static_cast<C>(size == 0 ? 0 : error / size);
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    error_gradient_kernel(const T* x, const T* reference, RowIntegers mask, const double* sums,
                          const gpu_compute_t<T>* d_loss, T* d_x, bool accumulate, SpanLayout<3> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  const double size = sums[1];
  const bool counts = size != 0 && !(mask.given() && mask[chunk.row] == 0);
  if (!counts && accumulate) return;
  Compute gradient[width] = {};
  if (counts) {
    const auto factor = static_cast<Compute>(2 * static_cast<double>(*d_loss) / size);
    Compute values[width], against[width];
    read_chunk<width>(x + chunk.offsets[0], chunk.size, chunk.vectors, values);
    read_chunk<width>(reference + chunk.offsets[1], chunk.size, chunk.vectors, against);
    if (accumulate) read_chunk<width>(d_x + chunk.offsets[2], chunk.size, chunk.vectors, gradient);
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) gradient[i] = gpu_fma(values[i] - against[i], factor, gradient[i]);
  }
  write_chunk<width>(d_x + chunk.offsets[2], chunk.size, chunk.vectors, gradient);
}

}  // namespace

void relative_error(const Stream& stream, const Tensor& x, const Tensor& reference, const Tensor& mask,
                    const Tensor& sums, const Tensor& loss) {
  with_gpu_float_type(x.dtype(), "relative_error", [&]<class T>(std::type_identity<T>) {
    const auto layout = span_layout<chunk_width<T>>(std::array{x, reference}, true);
    const std::int64_t per_block =
        gpu_max<std::int64_t>(1, ceil_div(ceil_div(layout.chunks, span_threads), max_blocks)) * span_threads;
    const std::int64_t blocks = ceil_div(layout.chunks, per_block);
    const Tensor partial = Tensor::empty({gpu_max<std::int64_t>(1, blocks), 2}, DType::float64, stream.device);
    if (blocks > 0) {
      launch(stream, sum_errors_kernel<T>, static_cast<unsigned>(blocks), span_threads, 0, gpu_data<T>(x),
             gpu_data<T>(reference), RowIntegers(mask), gpu_data<double>(partial), per_block, layout);
    }
    launch(stream, divide_errors_kernel<gpu_compute_t<T>>, 1, span_threads, 0, gpu_data<double>(partial),
           static_cast<int>(blocks), gpu_data<double>(sums), gpu_data<gpu_compute_t<T>>(loss));
  });
}

void relative_error_backward(const Stream& stream, const Tensor& x, const Tensor& reference, const Tensor& mask,
                             const Tensor& sums, const Tensor& d_loss, const Tensor& d_x, bool accumulate) {
  with_gpu_float_type(x.dtype(), "relative_error", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, error_gradient_kernel<T>, span_layout<chunk_width<T>>(std::array{x, reference, d_x}, true),
                 gpu_data<T>(x), gpu_data<T>(reference), RowIntegers(mask), gpu_data<double>(sums),
                 gpu_data<gpu_compute_t<T>>(d_loss), gpu_data<T>(d_x), accumulate);
  });
}

const GpuKernelRegistration relative_error_registration{relative_error_gpu, &relative_error};
const GpuKernelRegistration relative_error_backward_registration{relative_error_backward_gpu, &relative_error_backward};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
