#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/elementwise/column_gain_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

template <class T>
__global__ void __launch_bounds__(span_threads)
    column_gain_kernel(const T* in, const gpu_compute_t<T>* gain, T* out, bool accumulate, bool gain_vectors,
                       SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  Compute values[width], factors[width], before[width] = {};
  read_chunk<width>(in + chunk.offsets[0], chunk.size, chunk.vectors, values);
  read_chunk<width>(gain + chunk.column, chunk.size, gain_vectors && chunk.size == width, factors);
  if (accumulate) read_chunk<width>(out + chunk.offsets[1], chunk.size, chunk.vectors, before);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    values[i] = rounded_product(values[i], factors[i]);
    if (accumulate) values[i] = rounded_sum(values[i], before[i]);
  }
  write_chunk<width>(out + chunk.offsets[1], chunk.size, chunk.vectors, values);
}

constexpr int tile_columns = 32, tile_warps = span_threads / tile_columns;

/// A block sums 32 columns of one run of rows; each warp takes every eighth row.
template <class T>
__global__ void __launch_bounds__(span_threads)
    sum_products_kernel(const T* x, const T* d_y, gpu_compute_t<T>* blocks, std::int64_t rows, int n_blocks,
                        SpanLayout<2> layout) {
  using Compute = gpu_compute_t<T>;
  FURLONG_SHARED(Compute, sums, [tile_warps][tile_columns]);
  const std::int64_t block = blockIdx.x % static_cast<unsigned>(n_blocks),
                     tile = blockIdx.x / static_cast<unsigned>(n_blocks);
  const std::int64_t column = tile * tile_columns + lane_index(), end = rows * (block + 1) / n_blocks;
  Compute sum = 0;
  if (column < layout.columns) {
    for (std::int64_t row = rows * block / n_blocks + warp_index(); row < end; row += tile_warps) {
      std::int64_t at[2] = {column, column};
      add_row_offsets(layout, row, at);
      sum = gpu_fma(to_compute(x[at[0]]), to_compute(d_y[at[1]]), sum);
    }
  }
  sums[warp_index()][lane_index()] = sum;
  __syncthreads();
  if (warp_index() != 0 || column >= layout.columns) return;
  for (int warp = 1; warp < tile_warps; ++warp) sum += sums[warp][lane_index()];
  blocks[block * layout.columns + column] = sum;
}

template <class Compute>
__global__ void __launch_bounds__(span_threads)
    sum_blocks_kernel(const Compute* blocks, Compute* d_gain, std::int64_t columns, int n_blocks) {
  const std::int64_t column = global_thread();
  if (column >= columns) return;
  Compute sum = 0;
  for (int block = 0; block < n_blocks; ++block) sum += blocks[block * columns + column];
  d_gain[column] = sum;
}

}  // namespace

void column_gain(const Stream& stream, const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate) {
  with_gpu_float_type(in.dtype(), "column_gain", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, column_gain_kernel<T>, span_layout<chunk_width<T>>(std::array{in, out}, true), gpu_data<T>(in),
                 gpu_data<gpu_compute_t<T>>(gain), gpu_data<T>(out), accumulate, is_aligned(gain.address(), 16));
  });
}

void column_gain_d_gain(const Stream& stream, const Tensor& x, const Tensor& d_y, const Tensor& blocks,
                        const Tensor& d_gain) {
  const std::int64_t columns = x.extent(-1), n_blocks = blocks.extent(0);
  if (columns == 0) return;
  with_gpu_float_type(x.dtype(), "column_gain", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    launch(stream, sum_products_kernel<T>, static_cast<unsigned>(n_blocks * ceil_div(columns, tile_columns)),
           span_threads, 0, gpu_data<T>(x), gpu_data<T>(d_y), gpu_data<Compute>(blocks), x.shape().rows(),
           static_cast<int>(n_blocks), span_layout<chunk_width<T>>(std::array{x, d_y}, true));
    launch(stream, sum_blocks_kernel<Compute>, grid_blocks(columns, span_threads), span_threads, 0,
           gpu_data<Compute>(blocks), gpu_data<Compute>(d_gain), columns, static_cast<int>(n_blocks));
  });
}

const GpuKernelRegistration column_gain_registration{column_gain_gpu, &column_gain};
const GpuKernelRegistration column_gain_d_gain_registration{column_gain_d_gain_gpu, &column_gain_d_gain};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
