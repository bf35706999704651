#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/dense/pooling_kernels.h"
#include "framework/primitives/arithmetic_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int tile_columns = 32, tile_warps = span_threads / tile_columns;

/// counts[b] = number of unmasked positions of sequence b; one block per sequence.
__global__ void __launch_bounds__(span_threads)
    count_kept_kernel(const std::int32_t* mask, std::int64_t n, std::int32_t* counts) {
  std::int32_t count = 0;
  for (std::int64_t t = threadIdx.x; t < n; t += span_threads) count += mask[blockIdx.x * n + t] != 0 ? 1 : 0;
  count = block_sum(count);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

/// Returns 1 / (number of unmasked positions of sequence b), or 1 if there are none.
template <class Compute>
__device__ Compute mean_factor(const std::int32_t* counts, std::int64_t b, std::int64_t n) {
  const std::int64_t count = counts ? counts[b] : n;
  return Compute{1} / static_cast<Compute>(count > 1 ? count : 1);
}

/// x [batch, n, d] -> partial [batch, segments, d]. Each block sums 32 columns over one segment of the positions; each
/// warp takes every eighth position.
template <class T>
__global__ void __launch_bounds__(span_threads)
    sum_segments_kernel(const T* x, const std::int32_t* mask, gpu_compute_t<T>* partial, std::int64_t n, std::int64_t d,
                        int segments, unsigned tiles) {
  using Compute = gpu_compute_t<T>;
  FURLONG_SHARED(Compute, sums, [tile_warps][tile_columns]);
  const std::int64_t column = std::int64_t{blockIdx.x % tiles} * tile_columns + lane_index();
  const std::int64_t segment_of_batch = blockIdx.x / tiles, b = segment_of_batch / segments,
                     segment = segment_of_batch % segments;
  const std::int64_t end = n * (segment + 1) / segments;
  Compute sum = 0;
  for (std::int64_t t = n * segment / segments + warp_index(); t < end; t += tile_warps) {
    if (column < d && (mask == nullptr || mask[b * n + t] != 0)) sum += to_compute(x[(b * n + t) * d + column]);
  }
  sums[warp_index()][lane_index()] = sum;
  __syncthreads();
  if (warp_index() != 0 || column >= d) return;
  for (int warp = 1; warp < tile_warps; ++warp) sum += sums[warp][lane_index()];
  partial[segment_of_batch * d + column] = sum;
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    mean_kernel(const gpu_compute_t<T>* partial, const std::int32_t* counts, T* output, std::int64_t batch,
                std::int64_t n, std::int64_t d, int segments) {
  const std::int64_t index = global_thread();
  if (index >= batch * d) return;
  const std::int64_t b = quotient(index, d), column = index - b * d;
  gpu_compute_t<T> sum = 0;
  for (int segment = 0; segment < segments; ++segment) sum += partial[(b * segments + segment) * d + column];
  output[index] = from_compute<T>(sum * mean_factor<gpu_compute_t<T>>(counts, b, n));
}

/// d_x [batch * n, d]: the row of d_output for positions that contribute, else zero.
template <class T>
__global__ void __launch_bounds__(span_threads)
    pool_backward_kernel(const T* d_output, const std::int32_t* mask, const std::int32_t* counts, bool mean, T* d_x,
                         bool accumulate, std::int64_t n, SpanLayout<1> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  const std::int64_t b = quotient(chunk.row, n);
  const bool reached = mean ? mask == nullptr || mask[chunk.row] != 0 : chunk.row == b * n;
  if (!reached && accumulate) return;
  Compute values[width] = {}, before[width] = {};
  if (reached) {
    const Compute scale = mean ? mean_factor<Compute>(counts, b, n) : Compute{1};
    read_chunk<width>(d_output + b * layout.columns + chunk.column, chunk.size, false, values);
    if (accumulate) read_chunk<width>(d_x + chunk.offsets[0], chunk.size, chunk.vectors, before);
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) {
      values[i] = rounded_product(values[i], scale);
      if (accumulate) values[i] = rounded_sum(values[i], before[i]);
    }
  }
  write_chunk<width>(d_x + chunk.offsets[0], chunk.size, chunk.vectors, values);
}

/// u and y are the first d columns of x [pairs, 2 d] and of y [pairs, 4 d].
template <class T>
__global__ void __launch_bounds__(span_threads) pair_features_kernel(const T* x, T* y, SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  const std::int64_t index = global_thread(), d = layout.columns;
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  gpu_compute_t<T> u[width], v[width], product[width], difference[width];
  read_chunk<width>(x + chunk.offsets[0], chunk.size, chunk.vectors, u);
  read_chunk<width>(x + chunk.offsets[0] + d, chunk.size, chunk.vectors, v);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    product[i] = rounded_product(u[i], v[i]);
    difference[i] = rounded_sum(u[i], -v[i]);
  }
  y += chunk.offsets[1];
  write_chunk<width>(y, chunk.size, chunk.vectors, u);
  write_chunk<width>(y + d, chunk.size, chunk.vectors, v);
  write_chunk<width>(y + 2 * d, chunk.size, chunk.vectors, product);
  write_chunk<width>(y + 3 * d, chunk.size, chunk.vectors, difference);
}

/// d_u (+)= d_0 + d_2 v + d_3 and d_v (+)= d_1 + d_2 u - d_3, where d_k are the four parts of d_y.
template <class T>
__global__ void __launch_bounds__(span_threads)
    pair_features_backward_kernel(const T* x, const T* d_y, T* d_x, bool accumulate, SpanLayout<3> layout) {
  constexpr int width = chunk_width<T>;
  const std::int64_t index = global_thread(), d = layout.columns;
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  x += chunk.offsets[0];
  d_y += chunk.offsets[1];
  d_x += chunk.offsets[2];
  gpu_compute_t<T> product[width], difference[width];
  read_chunk<width>(d_y + 2 * d, chunk.size, chunk.vectors, product);
  read_chunk<width>(d_y + 3 * d, chunk.size, chunk.vectors, difference);
  FURLONG_UNROLL
  for (int side = 0; side < 2; ++side) {
    gpu_compute_t<T> values[width], other[width], before[width] = {};
    read_chunk<width>(d_y + side * d, chunk.size, chunk.vectors, values);
    read_chunk<width>(x + (1 - side) * d, chunk.size, chunk.vectors, other);
    if (accumulate) read_chunk<width>(d_x + side * d, chunk.size, chunk.vectors, before);
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) {
      values[i] = rounded_sum(values[i], rounded_product(product[i], other[i]));
      values[i] = rounded_sum(values[i], side == 0 ? difference[i] : -difference[i]);
      if (accumulate) values[i] = rounded_sum(values[i], before[i]);
    }
    write_chunk<width>(d_x + side * d, chunk.size, chunk.vectors, values);
  }
}

/// Returns int32 [batch]; undefined without a mask.
Tensor kept_counts(const Stream& stream, const Tensor& mask) {
  if (!mask.defined()) return {};
  const Tensor counts = Tensor::empty({mask.extent(0)}, DType::int32, stream.device);
  launch(stream, count_kept_kernel, static_cast<unsigned>(mask.extent(0)), span_threads, 0,
         gpu_data<std::int32_t>(mask), mask.extent(1), gpu_data<std::int32_t>(counts));
  return counts;
}

template <class T>
void mean_of_rows(const Stream& stream, const Tensor& x, const Tensor& mask, const Tensor& output) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t batch = x.extent(0), n = x.extent(1), d = x.extent(2);
  const std::int64_t segments = gpu_min<std::int64_t>(ceil_div<std::int64_t>(n, 512), 64);
  const std::int64_t tiles = ceil_div<std::int64_t>(d, tile_columns);
  const Tensor counts = kept_counts(stream, mask),
               partial = Tensor::empty({batch, segments, d}, accumulate_dtype(x.dtype()), x.device());
  launch(stream, sum_segments_kernel<T>, static_cast<unsigned>(tiles * segments * batch), span_threads, 0,
         gpu_data<T>(x), gpu_data<std::int32_t>(mask), gpu_data<Compute>(partial), n, d, static_cast<int>(segments),
         static_cast<unsigned>(tiles));
  launch(stream, mean_kernel<T>, grid_blocks(batch * d, span_threads), span_threads, 0, gpu_data<Compute>(partial),
         gpu_data<std::int32_t>(counts), gpu_data<T>(output), batch, n, d, static_cast<int>(segments));
}

/// Returns the first d columns of x [pairs, parts d], for chunks that do not cross a part.
template <int width, std::size_t count>
auto layout_of_parts(const std::array<Tensor, count>& first_parts, std::int64_t d) {
  auto layout = span_layout<width>(first_parts, true);
  layout.vectors = layout.vectors && d % width == 0;
  return layout;
}
Tensor first_part(const Tensor& x, std::int64_t pairs, std::int64_t d) {
  return x.reshape({pairs, x.elements() / pairs}).narrow(1, 0, d);
}

}  // namespace

void pool(const Stream& stream, const Tensor& x, const Tensor& mask, bool mean, const Tensor& output) {
  if (output.elements() == 0) return;
  if (!mean) {
    add_gpu(stream, output.reshape({x.extent(0), 1, x.extent(2)}), x.narrow(1, 0, 1), false, 1.0);
    return;
  }
  with_gpu_float_type(x.dtype(), "pool",
                      [&]<class T>(std::type_identity<T>) { mean_of_rows<T>(stream, x, mask, output); });
}

void pool_backward(const Stream& stream, const Tensor& d_output, const Tensor& mask, bool mean, const Tensor& d_x,
                   bool accumulate) {
  if (d_x.elements() == 0) return;
  const Tensor counts = mean ? kept_counts(stream, mask) : Tensor{};
  with_gpu_float_type(d_output.dtype(), "pool", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, pool_backward_kernel<T>, span_layout<chunk_width<T>>(std::array{d_x}, true),
                 gpu_data<T>(d_output), gpu_data<std::int32_t>(mask), gpu_data<std::int32_t>(counts), mean,
                 gpu_data<T>(d_x), accumulate, d_x.extent(1));
  });
}

void pair_features(const Stream& stream, const Tensor& x, const Tensor& output) {
  const std::int64_t pairs = output.extent(0), d = x.extent(1);
  if (x.elements() == 0) return;
  with_gpu_float_type(x.dtype(), "pair_features", [&]<class T>(std::type_identity<T>) {
    const auto layout =
        layout_of_parts<chunk_width<T>>(std::array{first_part(x, pairs, d), first_part(output, pairs, d)}, d);
    launch_spans(stream, pair_features_kernel<T>, layout, gpu_data<T>(x), gpu_data<T>(output));
  });
}

void pair_features_backward(const Stream& stream, const Tensor& x, const Tensor& d_output, const Tensor& d_x,
                            bool accumulate) {
  const std::int64_t pairs = d_output.extent(0), d = x.extent(1);
  if (x.elements() == 0) return;
  with_gpu_float_type(x.dtype(), "pair_features", [&]<class T>(std::type_identity<T>) {
    const std::array parts{first_part(x, pairs, d), first_part(d_output, pairs, d), first_part(d_x, pairs, d)};
    launch_spans(stream, pair_features_backward_kernel<T>, layout_of_parts<chunk_width<T>>(parts, d), gpu_data<T>(x),
                 gpu_data<T>(d_output), gpu_data<T>(d_x), accumulate);
  });
}

const GpuKernelRegistration pool_registration{pool_gpu, &pool};
const GpuKernelRegistration pool_backward_registration{pool_backward_gpu, &pool_backward};
const GpuKernelRegistration pair_features_registration{pair_features_gpu, &pair_features};
const GpuKernelRegistration pair_features_backward_registration{pair_features_backward_gpu, &pair_features_backward};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
