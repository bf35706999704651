#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/random_words.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/elementwise/dropout_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

template <class T>
__global__ void __launch_bounds__(span_threads)
    dropout_kernel(const T* source, T* target, bool accumulate, std::uint32_t threshold, double scale, RandomKey key,
                   std::uint64_t first_index, const double* device_step, SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  Compute values[width], before[width] = {};
  read_chunk<width>(source + chunk.offsets[0], chunk.size, chunk.vectors, values);
  if (accumulate) read_chunk<width>(target + chunk.offsets[1], chunk.size, chunk.vectors, before);
  if (device_step) key.step = static_cast<std::uint32_t>(static_cast<std::int64_t>(*device_step));
  std::uint32_t words[width];
  random_words(key, first_index + static_cast<std::uint64_t>(chunk.row * layout.columns + chunk.column), words);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    values[i] = words[i] < threshold ? Compute{0} : rounded_product(values[i], static_cast<Compute>(scale));
    if (accumulate) values[i] = rounded_sum(values[i], before[i]);
  }
  write_chunk<width>(target + chunk.offsets[1], chunk.size, chunk.vectors, values);
}

}  // namespace

void dropout(const Stream& stream, const Tensor& source, const Tensor& target, bool accumulate, std::uint32_t threshold,
             double scale, const RandomKey& key, std::uint64_t first_index, const Tensor& device_step) {
  with_gpu_float_type(source.dtype(), "dropout", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, dropout_kernel<T>, span_layout<chunk_width<T>>(std::array{source, target}),
                 gpu_data<T>(source), gpu_data<T>(target), accumulate, threshold, scale, key, first_index,
                 gpu_data<double>(device_step));
  });
}

const GpuKernelRegistration dropout_registration{dropout_gpu, &dropout};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
