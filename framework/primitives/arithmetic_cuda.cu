#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/primitives/arithmetic_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

template <class T>
__global__ void __launch_bounds__(span_threads) fill_kernel(T* target, double value, SpanLayout<1> layout) {
  constexpr int width = chunk_width<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  gpu_compute_t<T> values[width];
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) values[i] = static_cast<gpu_compute_t<T>>(value);
  write_chunk<width>(target + chunk.offsets[0], chunk.size, chunk.vectors, values);
}

/// Both are converted to the wider compute type. float and double mix only in tests, where float64 parameters meet
/// float32 values.
template <class To, class From>
using common_t = std::conditional_t<std::is_same_v<To, double> || std::is_same_v<From, double>, double, float>;

template <class To, class From>
inline constexpr int add_width = chunk_width<To> < chunk_width<From> ? chunk_width<To> : chunk_width<From>;

template <class To, class From>
__global__ void __launch_bounds__(span_threads)
    add_kernel(To* target, const From* source, bool accumulate, double scale_, SpanLayout<2> layout) {
  constexpr int width = add_width<To, From>;
  using Common = common_t<To, From>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  const auto scale = static_cast<Common>(scale_);
  gpu_compute_t<From> added[width];
  gpu_compute_t<To> sum[width] = {};
  read_chunk<width>(source + chunk.offsets[1], chunk.size, chunk.vectors, added);
  if (accumulate) read_chunk<width>(target + chunk.offsets[0], chunk.size, chunk.vectors, sum);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    const Common term = rounded_product(static_cast<Common>(added[i]), scale);
    sum[i] = static_cast<gpu_compute_t<To>>(accumulate ? rounded_sum(term, static_cast<Common>(sum[i])) : term);
  }
  write_chunk<width>(target + chunk.offsets[0], chunk.size, chunk.vectors, sum);
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    count_non_finite_kernel(const T* values, double* counts, SpanLayout<1> layout) {
  constexpr int width = chunk_width<T>;
  std::int64_t count = 0;
  for (std::int64_t index = global_thread(); index < layout.chunks; index += grid_stride()) {
    const auto chunk = span_chunk<width>(layout, index);
    gpu_compute_t<T> read[width];
    read_chunk<width>(values + chunk.offsets[0], chunk.size, chunk.vectors, read);
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) count += gpu_is_finite(read[i]) ? 0 : 1;
  }
  const double sum = block_sum(static_cast<double>(count));
  if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

/// partial[block] = the sum of squares of elements [block * per_block, (block + 1) * per_block).
template <class T>
__global__ void __launch_bounds__(span_threads)
    squares_kernel(const T* values, double* partial, std::int64_t n, std::int64_t per_block, bool vectors) {
  constexpr int width = chunk_width<T>;
  const std::int64_t begin = blockIdx.x * per_block, end = gpu_min(begin + per_block, n);
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x * width; i < end; i += span_threads * width) {
    const int size = end - i < width ? static_cast<int>(end - i) : width;
    gpu_compute_t<T> read[width];
    read_chunk<width>(values + i, size, vectors && size == width, read);
    FURLONG_UNROLL
    for (int k = 0; k < width; ++k) sum += static_cast<double>(read[k]) * static_cast<double>(read[k]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// Runs as one block.
__global__ void __launch_bounds__(span_threads) sum_of_partial_kernel(const double* partial, int n, double* result) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += span_threads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *result = sum;
}

}  // namespace

void fill(const Stream& stream, const Tensor& tensor, double value) {
  with_gpu_float_type(tensor.dtype(), "fill", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, fill_kernel<T>, span_layout<chunk_width<T>>(std::array{tensor}), gpu_data<T>(tensor), value);
  });
}

void add(const Stream& stream, const Tensor& target, const Tensor& source, bool accumulate, double scale) {
  with_gpu_float_type(target.dtype(), "add", [&]<class To>(std::type_identity<To>) {
    with_gpu_float_type(source.dtype(), "add", [&]<class From>(std::type_identity<From>) {
      launch_spans(stream, add_kernel<To, From>, span_layout<add_width<To, From>>(std::array{target, source}),
                   gpu_data<To>(target), gpu_data<From>(source), accumulate, scale);
    });
  });
}

void count_non_finite(const Stream& stream, const Tensor& tensor, const Tensor& counts) {
  with_gpu_float_type(tensor.dtype(), "count_non_finite", [&]<class T>(std::type_identity<T>) {
    launch(stream, count_non_finite_kernel<T>, static_cast<unsigned>(counts.elements()), span_threads, 0,
           gpu_data<T>(tensor), gpu_data<double>(counts), span_layout<chunk_width<T>>(std::array{tensor}));
  });
}

void sum_of_squares(const Stream& stream, const Tensor& tensor, const Tensor& result) {
  // At most this many thread blocks, all with the same number of blocks of elements, so that the order of sums depends
  // only on the size.
  constexpr std::int64_t max_blocks = 2048;
  const std::int64_t n = tensor.elements(), element_blocks = ceil_div(n, sum_of_squares_block);
  const std::int64_t per_block = gpu_max<std::int64_t>(1, ceil_div(element_blocks, max_blocks)) * sum_of_squares_block;
  const std::int64_t blocks = ceil_div(n, per_block);
  const Tensor partial = Tensor::empty({gpu_max<std::int64_t>(1, blocks)}, DType::float64, stream.device);
  if (blocks > 0) {
    with_gpu_float_type(tensor.dtype(), "sum_of_squares", [&]<class T>(std::type_identity<T>) {
      launch(stream, squares_kernel<T>, static_cast<unsigned>(blocks), span_threads, 0, gpu_data<T>(tensor),
             gpu_data<double>(partial), n, per_block, is_aligned(tensor.address(), 16));
    });
  }
  launch(stream, sum_of_partial_kernel, 1, span_threads, 0, gpu_data<double>(partial), static_cast<int>(blocks),
         gpu_data<double>(result));
}

const GpuKernelRegistration fill_registration{fill_gpu, &fill};
const GpuKernelRegistration add_registration{add_gpu, &add};
const GpuKernelRegistration count_non_finite_registration{count_non_finite_gpu, &count_non_finite};
const GpuKernelRegistration sum_of_squares_registration{sum_of_squares_gpu, &sum_of_squares};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
