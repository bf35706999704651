#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/elementwise/token_dropout_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

/// One block per sequence.
template <class Compute>
__global__ void __launch_bounds__(span_threads)
    token_dropout_factors_kernel(const std::int32_t* tokens, std::int64_t token_stride, const std::int32_t* keys,
                                 std::int64_t n, std::int32_t mask_token, Compute* factors) {
  const std::int64_t b = blockIdx.x;
  std::int32_t length = 0, masked = 0;
  for (std::int64_t t = threadIdx.x; t < n; t += span_threads) {
    if (keys != nullptr && keys[b * n + t] == 0) continue;
    ++length;
    masked += tokens[b * token_stride + t] == mask_token ? 1 : 0;
  }
  length = block_sum(length);
  masked = block_sum(masked);
  if (threadIdx.x != 0) return;
  factors[b] = masked == length ? Compute{0}
                                : static_cast<Compute>(unmasked_in_training * static_cast<double>(length) /
                                                       static_cast<double>(length - masked));
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    token_dropout_kernel(const T* in, const std::int32_t* tokens, std::int64_t token_stride, std::int64_t n,
                         std::int32_t mask_token, const gpu_compute_t<T>* factors, T* out, bool accumulate,
                         SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  const std::int64_t b = quotient(chunk.row, n), t = chunk.row - b * n;
  const bool masked = tokens[b * token_stride + t] == mask_token;
  Compute values[width] = {}, before[width] = {};
  if (!masked) read_chunk<width>(in + chunk.offsets[0], chunk.size, chunk.vectors, values);
  if (accumulate) read_chunk<width>(out + chunk.offsets[1], chunk.size, chunk.vectors, before);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    values[i] = rounded_product(values[i], factors[b]);
    if (accumulate) values[i] = rounded_sum(values[i], before[i]);
  }
  write_chunk<width>(out + chunk.offsets[1], chunk.size, chunk.vectors, values);
}

}  // namespace

void token_dropout_factors(const Stream& stream, const Tensor& tokens, const Tensor& keys, std::int32_t mask_token,
                           const Tensor& factors) {
  if (tokens.extent(0) == 0) return;
  with_gpu_float_type(factors.dtype(), "token_dropout", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    launch(stream, token_dropout_factors_kernel<Compute>, static_cast<unsigned>(tokens.extent(0)), span_threads, 0,
           gpu_data<std::int32_t>(tokens), tokens.strides()[0], keys.defined() ? gpu_data<std::int32_t>(keys) : nullptr,
           tokens.extent(1), mask_token, gpu_data<Compute>(factors));
  });
}

void token_dropout(const Stream& stream, const Tensor& in, const Tensor& tokens, std::int32_t mask_token,
                   const Tensor& factors, const Tensor& out, bool accumulate) {
  with_gpu_float_type(in.dtype(), "token_dropout", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, token_dropout_kernel<T>, span_layout<chunk_width<T>>(std::array{in, out}, true),
                 gpu_data<T>(in), gpu_data<std::int32_t>(tokens), tokens.strides()[0], in.extent(1), mask_token,
                 gpu_data<gpu_compute_t<T>>(factors), gpu_data<T>(out), accumulate);
  });
}

const GpuKernelRegistration token_dropout_factors_registration{token_dropout_factors_gpu, &token_dropout_factors};
const GpuKernelRegistration token_dropout_registration{token_dropout_gpu, &token_dropout};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
