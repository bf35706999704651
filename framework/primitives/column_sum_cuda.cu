// Sums over the rows of a matrix, in two passes without atomics: over fixed blocks of rows, then over the blocks in
// order.
#include "framework/cuda/kernels/kernel.h"
// kernel.h must come first.
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

constexpr int columns_of_block = 32, rows_at_once = 8;
constexpr std::int64_t min_rows = 256, max_blocks = 1024;

/// sums[block of rows, column]. Thread (x, y) adds rows y, y + 8, ... of its column; then the eight sums are added in
/// order.
template <class From, class Sum>
__global__ void __launch_bounds__(columns_of_block* rows_at_once)
    column_sum_kernel(const From* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                      std::int64_t rows_of_block, Sum* sums) {
  FURLONG_SHARED(Sum, parts, [rows_at_once][columns_of_block]);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * columns_of_block + x;
  const std::int64_t begin = blockIdx.y * rows_of_block, end = gpu_min(begin + rows_of_block, rows);
  Sum sum = 0;
  if (column < columns) {
    for (std::int64_t row = begin + y; row < end; row += rows_at_once)
      sum += Sum(to_compute(matrix[row * stride + column]));
  }
  parts[y][x] = sum;
  __syncthreads();
  if (y != 0 || column >= columns) return;
  for (int part = 1; part < rows_at_once; ++part) sum += parts[part][x];
  sums[blockIdx.y * columns + column] = sum;
}

/// target[column] = (accumulate ? target[column] : 0) + the blocks' sums
template <class Sum, class To>
__global__ void __launch_bounds__(256) column_sum_of_blocks_kernel(const Sum* sums, std::int64_t blocks,
                                                                   std::int64_t columns, To* target, bool accumulate) {
  const std::int64_t column = global_thread();
  if (column >= columns) return;
  Sum sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += sums[block * columns + column];
  if (accumulate) sum += Sum(to_compute(target[column]));
  target[column] = from_compute<To>(sum);
}

void column_sum(const Stream& stream, const Tensor& matrix, const Tensor& target, bool accumulate) {
  const std::int64_t rows = matrix.extent(0), columns = matrix.extent(1);
  if (columns == 0) return;
  require(target.shape().rank() == 0 || target.has_contiguous_rows(),
          "column_sum: rows of the target {} are not contiguous", target.shape().text());
  // Depends only on the number of rows.
  const std::int64_t rows_of_block = gpu_max(min_rows, ceil_div(rows, max_blocks)),
                     blocks = ceil_div(rows, rows_of_block);
  const Tensor sums = Tensor::empty({blocks, columns}, accumulate_dtype(target.dtype()), stream.device);
  const auto run = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
    using Sum = gpu_compute_t<To>;
    if (blocks > 0) {
      launch(stream, column_sum_kernel<From, Sum>,
             dim3(grid_blocks(columns, columns_of_block), static_cast<unsigned>(blocks)),
             dim3(columns_of_block, rows_at_once), 0, gpu_data<From>(matrix), matrix.strides()[0], rows, columns,
             rows_of_block, gpu_data<Sum>(sums));
    }
    launch(stream, column_sum_of_blocks_kernel<Sum, To>, dim3(grid_blocks(columns, 256)), dim3(256), 0,
           gpu_data<Sum>(sums), blocks, columns, gpu_data<To>(target), accumulate);
  };
  with_gpu_float_type(matrix.dtype(), "column_sum", [&]<class From>(std::type_identity<From> from) {
    with_gpu_float_type(target.dtype(), "column_sum", [&]<class To>(std::type_identity<To> to) { run(from, to); });
  });
}

const GpuKernelRegistration column_sum_registration{column_sum_gpu, &column_sum};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
