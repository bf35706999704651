#include "framework/cuda/kernels/kernel.h"

#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/normalization/norm_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

// A row is read once: its elements stay in the registers of one or more warps between the statistics and the result.
// Columns that do not fit in 8 warps are read again from the cache.

template <class T>
struct NormForwardPointers {
  using Compute = gpu_compute_t<T>;
  const T *residual_in, *branch;
  T *residual, *normed;
  const Compute *gain, *bias;
  Compute *mean, *reciprocal_deviation;
  std::int64_t rows, columns;
  Compute per_column, epsilon;  // per_column: 1 / columns
  bool aligned;
};

inline constexpr int norm_chunks = 4;  // vectors of a row per thread
inline constexpr unsigned norm_forward_threads = 256, norm_forward_warps = 4;

/// Returns the sum over the threads of one row: a warp, or the whole block.
template <class T>
__device__ inline T sum_over_row(T value) {
  return blockDim.x == 32 ? warp_sum(value) : block_sum(value);
}

/// Loads elements [column, column + N) of the residual; with a branch, computes and stores them first. Statistics use
/// the sum as it is stored, so that backward uses the same numbers.
template <int N, class T>
__device__ inline void load_residual(const NormForwardPointers<T>& work, std::int64_t at, gpu_compute_t<T> (&x)[N]) {
  load_values<N>(work.residual_in + at, work.aligned, x);
  if (work.branch == nullptr) return;
  gpu_compute_t<T> branch[N];
  load_values<N>(work.branch + at, work.aligned, branch);
  FURLONG_UNROLL
  for (int i = 0; i < N; ++i) x[i] = to_compute(from_compute<T>(x[i] + branch[i]));
  store_values<N>(work.residual + at, work.aligned, x);
}

template <int N, class T>
__device__ inline void store_normed(const NormForwardPointers<T>& work, std::int64_t row, std::int64_t column,
                                    const gpu_compute_t<T> (&x)[N], gpu_compute_t<T> mean,
                                    gpu_compute_t<T> reciprocal_deviation) {
  gpu_compute_t<T> gain[N], bias[N] = {}, normed[N];
  load_values<N>(work.gain + column, work.aligned, gain);
  if (work.bias != nullptr) load_values<N>(work.bias + column, work.aligned, bias);
  FURLONG_UNROLL
  for (int i = 0; i < N; ++i) normed[i] = gpu_fma((x[i] - mean) * reciprocal_deviation, gain[i], bias[i]);
  store_values<N>(work.normed + row * work.columns + column, work.aligned, normed);
}

/// Blocks of (32, several) threads process one row per warp; blocks of (more, 1) process one row.
template <class T, int N>
__global__ void __launch_bounds__(norm_forward_threads, 4) norm_forward_kernel(NormForwardPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, columns = work.columns;
  if (row >= work.rows) return;  // whole warps, which reach no barrier
  const std::int64_t first = row * columns, step = static_cast<std::int64_t>(blockDim.x) * N,
                     own = static_cast<std::int64_t>(threadIdx.x) * N;
  const T* stored_x = work.branch != nullptr ? work.residual : work.residual_in;
  Compute held[norm_chunks][N], beyond[N];

  Compute sum = 0;
  FURLONG_UNROLL
  for (int chunk = 0; chunk < norm_chunks; ++chunk) {
    const std::int64_t column = chunk * step + own;
    if (column < columns) {
      load_residual<N>(work, first + column, held[chunk]);
    } else {
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) held[chunk][i] = 0;
    }
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) sum += held[chunk][i];
  }
  for (std::int64_t column = norm_chunks * step + own; column < columns; column += step) {
    load_residual<N>(work, first + column, beyond);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) sum += beyond[i];
  }
  const Compute mean = work.mean != nullptr ? sum_over_row(sum) * work.per_column : Compute(0);

  // mean((x - mean)^2): the difference of two large sums would lose the variance.
  Compute squares = 0;
  FURLONG_UNROLL
  for (int chunk = 0; chunk < norm_chunks; ++chunk) {
    if (chunk * step + own < columns) {
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) squares = gpu_fma(held[chunk][i] - mean, held[chunk][i] - mean, squares);
    }
  }
  for (std::int64_t column = norm_chunks * step + own; column < columns; column += step) {
    load_values<N>(stored_x + first + column, work.aligned, beyond);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) squares = gpu_fma(beyond[i] - mean, beyond[i] - mean, squares);
  }
  const Compute reciprocal_deviation = gpu_rsqrt(gpu_fma(sum_over_row(squares), work.per_column, work.epsilon));
  if (threadIdx.x == 0) {
    if (work.mean != nullptr) work.mean[row] = mean;
    work.reciprocal_deviation[row] = reciprocal_deviation;
  }

  FURLONG_UNROLL
  for (int chunk = 0; chunk < norm_chunks; ++chunk) {
    const std::int64_t column = chunk * step + own;
    if (column < columns) store_normed<N>(work, row, column, held[chunk], mean, reciprocal_deviation);
  }
  for (std::int64_t column = norm_chunks * step + own; column < columns; column += step) {
    load_values<N>(stored_x + first + column, work.aligned, beyond);
    store_normed<N>(work, row, column, beyond, mean, reciprocal_deviation);
  }
}

void norm_forward(const Stream& stream, const NormForward& work) {
  const std::int64_t rows = work.normed.shape().rows(), columns = work.normed.extent(-1);
  if (rows == 0) return;
  with_gpu_float_type(work.normed.dtype(), "norm", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    NormForwardPointers<T> pointers{gpu_data<T>(work.residual_in),
                                    gpu_data<T>(work.branch),
                                    gpu_data<T>(work.residual),
                                    gpu_data<T>(work.normed),
                                    gpu_data<Compute>(work.gain),
                                    gpu_data<Compute>(work.bias),
                                    gpu_data<Compute>(work.mean),
                                    gpu_data<Compute>(work.reciprocal_deviation),
                                    rows,
                                    columns,
                                    static_cast<Compute>(1.0 / static_cast<double>(columns)),
                                    static_cast<Compute>(work.epsilon),
                                    false};
    pointers.aligned = all_aligned(pointers.residual_in, pointers.branch, pointers.residual, pointers.normed,
                                   pointers.gain, pointers.bias);
    with_vector_width<T>(columns, [&]<int N>(std::integral_constant<int, N>) {
      const std::int64_t warps = ceil_div<std::int64_t>(columns, 32 * norm_chunks * N);
      const unsigned threads = 32 * power_of_two_up_to(warps, norm_forward_threads / 32);
      const unsigned rows_a_block = threads == 32 ? norm_forward_warps : 1;
      launch(stream, norm_forward_kernel<T, N>, grid_blocks(rows, rows_a_block), dim3(threads, rows_a_block), 0,
             pointers);
    });
  });
}

// ---- backward ----

template <class T>
struct NormBackwardPointers {
  using Compute = gpu_compute_t<T>;
  const T *residual, *d_normed, *addend;
  T* d_residual;
  const Compute *mean, *reciprocal_deviation, *gain;
  Compute* sums;  // [blocks, 2, columns] of d_gain and d_bias, or null
  std::int64_t rows, columns;
  Compute per_column;      // 1 / columns
  bool centered, aligned;  // centered: layernorm
};

/// Σ g and Σ g x_hat over a row.
template <class T>
struct NormRowSums {
  T g, g_x_hat;
};

/// Sums over the block with one barrier. `turn` alternates between calls, so that a call does not overwrite what the
/// previous one still reads.
template <class T>
__device__ inline NormRowSums<T> sum_over_block(NormRowSums<T> mine, int turn) {
  FURLONG_SHARED(NormRowSums<T>, warps, [2][32]);
  mine = {warp_sum(mine.g), warp_sum(mine.g_x_hat)};
  if (blockDim.x == 32) return mine;
  const int lane = lane_index();
  if (lane == 0) warps[turn][warp_index()] = mine;
  __syncthreads();
  const NormRowSums<T> warp_part = lane < warps_in_block() ? warps[turn][lane] : NormRowSums<T>{0, 0};
  return {warp_sum(warp_part.g), warp_sum(warp_part.g_x_hat)};
}

/// d_x = (g - x_hat mean(g x_hat) - mean(g)) / deviation plus the addend, with g = d_normed gain; the last mean only
/// for layernorm.
template <class T>
struct NormRow {
  T mean, reciprocal_deviation, mean_g, mean_g_x_hat;
  __device__ T x_hat(T x) const { return (x - mean) * reciprocal_deviation; }
  __device__ T d_x(T x, T g, T addend) const {
    return gpu_fma(gpu_fma(-x_hat(x), mean_g_x_hat, g) - mean_g, reciprocal_deviation, addend);
  }
  template <class Work>
  __device__ static NormRow load(const Work& work, std::int64_t row) {
    return {work.mean != nullptr ? work.mean[row] : T(0), work.reciprocal_deviation[row], 0, 0};
  }
  template <class Work>
  __device__ void set_means(const Work& work, NormRowSums<T> sums) {
    mean_g = work.centered ? sums.g * work.per_column : T(0);
    mean_g_x_hat = sums.g_x_hat * work.per_column;
  }
};

/// One block of rows for each thread block, one vector of columns for each thread. The next row is loaded while this
/// one is summed.
template <class T, int N, int max_threads>
__global__ void __launch_bounds__(max_threads) norm_backward_kernel(NormBackwardPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t blocks = gridDim.x, columns = work.columns, column = static_cast<std::int64_t>(threadIdx.x) * N;
  const std::int64_t first = work.rows * blockIdx.x / blocks, last = work.rows * (blockIdx.x + 1) / blocks;
  const bool inside = column < columns;
  Compute gain[N] = {}, d_gain[N] = {}, d_bias[N] = {}, x[N] = {}, d_y[N] = {};
  if (inside) {
    load_values<N>(work.gain + column, work.aligned, gain);
    load_values<N>(work.residual + first * columns + column, work.aligned, x);
    load_values<N>(work.d_normed + first * columns + column, work.aligned, d_y);
  }
  for (std::int64_t row = first; row < last; ++row) {
    NormRow<Compute> norm_row = NormRow<Compute>::load(work, row);
    Compute next_x[N] = {}, next_d_y[N] = {}, addend[N] = {}, g[N];
    if (inside) {
      const std::int64_t next = (row + 1) * columns + column;
      if (row + 1 < last) {
        load_values<N>(work.residual + next, work.aligned, next_x);
        load_values<N>(work.d_normed + next, work.aligned, next_d_y);
      }
      if (work.addend != nullptr) load_values<N>(work.addend + next - columns, work.aligned, addend);
    }
    NormRowSums<Compute> sums{0, 0};
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) {  // past the end d_y is zero and adds nothing to the sums
      const Compute x_hat = norm_row.x_hat(x[i]);
      g[i] = d_y[i] * gain[i];
      sums.g += g[i];
      sums.g_x_hat = gpu_fma(g[i], x_hat, sums.g_x_hat);
      d_gain[i] = gpu_fma(d_y[i], x_hat, d_gain[i]);
      d_bias[i] += d_y[i];
    }
    if (work.d_residual != nullptr) {
      norm_row.set_means(work, sum_over_block(sums, static_cast<int>(row & 1)));
      if (inside) {
        FURLONG_UNROLL
        for (int i = 0; i < N; ++i) addend[i] = norm_row.d_x(x[i], g[i], addend[i]);
        store_values<N>(work.d_residual + row * columns + column, work.aligned, addend);
      }
    }
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) {
      x[i] = next_x[i];
      d_y[i] = next_d_y[i];
    }
  }
  if (inside && work.sums != nullptr) {
    Compute* sums = work.sums + static_cast<std::int64_t>(blockIdx.x) * 2 * columns + column;
    store_values<N>(sums, work.aligned, d_gain);
    store_values<N>(sums + columns, work.aligned, d_bias);
  }
}

/// The same for rows too wide for one vector per thread: rows are read twice, and the sums for gain and bias are kept
/// in memory, each by its own thread.
template <class T>
__global__ void __launch_bounds__(512) norm_backward_wide_kernel(NormBackwardPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t blocks = gridDim.x, columns = work.columns;
  const std::int64_t first = work.rows * blockIdx.x / blocks, last = work.rows * (blockIdx.x + 1) / blocks;
  Compute* d_gain = work.sums != nullptr ? work.sums + static_cast<std::int64_t>(blockIdx.x) * 2 * columns : nullptr;
  for (std::int64_t row = first; row < last; ++row) {
    NormRow<Compute> norm_row = NormRow<Compute>::load(work, row);
    NormRowSums<Compute> sums{0, 0};
    for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      const Compute x_hat = norm_row.x_hat(to_compute(work.residual[row * columns + column]));
      const Compute d_y = to_compute(work.d_normed[row * columns + column]), g = d_y * work.gain[column];
      sums.g += g;
      sums.g_x_hat = gpu_fma(g, x_hat, sums.g_x_hat);
      if (d_gain != nullptr) {
        d_gain[column] = gpu_fma(d_y, x_hat, row == first ? Compute(0) : d_gain[column]);
        d_gain[columns + column] = d_y + (row == first ? Compute(0) : d_gain[columns + column]);
      }
    }
    if (work.d_residual == nullptr) continue;
    norm_row.set_means(work, sum_over_block(sums, static_cast<int>(row & 1)));
    for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      const std::int64_t at = row * columns + column;
      const Compute addend = work.addend != nullptr ? to_compute(work.addend[at]) : Compute(0);
      const Compute g = to_compute(work.d_normed[at]) * work.gain[column];
      work.d_residual[at] = from_compute<T>(norm_row.d_x(to_compute(work.residual[at]), g, addend));
    }
  }
}

/// Computes d_gain and d_bias from the blocks' sums [blocks, 2 · columns].
template <class T>
__global__ void __launch_bounds__(1024)
    norm_sum_blocks_kernel(const T* sums, std::int64_t blocks, std::int64_t columns, T* d_gain, T* d_bias) {
  const T total = column_total(sums, blocks, 2 * columns);
  const std::int64_t column = global_thread();
  if (threadIdx.y > 0 || column >= 2 * columns) return;
  if (column < columns) {
    d_gain[column] = total;
  } else {
    d_bias[column - columns] = total;
  }
}

void norm_backward(const Stream& stream, const NormBackward& work) {
  const std::int64_t rows = work.residual.shape().rows(), columns = work.residual.extent(-1);
  with_gpu_float_type(work.residual.dtype(), "norm", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    NormBackwardPointers<T> pointers{gpu_data<T>(work.residual),
                                     gpu_data<T>(work.d_normed),
                                     gpu_data<T>(work.addend),
                                     gpu_data<T>(work.d_residual),
                                     gpu_data<Compute>(work.mean),
                                     gpu_data<Compute>(work.reciprocal_deviation),
                                     gpu_data<Compute>(work.gain),
                                     gpu_data<Compute>(work.d_gain_bias_blocks),
                                     rows,
                                     columns,
                                     static_cast<Compute>(1.0 / static_cast<double>(columns)),
                                     work.kind == NormKind::layernorm,
                                     false};
    pointers.aligned = all_aligned(pointers.residual, pointers.d_normed, pointers.addend, pointers.d_residual,
                                   pointers.gain, pointers.sums);
    const std::int64_t blocks = norm_row_blocks(stream.device, rows, columns);
    if (rows > 0) {
      with_vector_width<T>(columns, [&]<int N>(std::integral_constant<int, N>) {
        constexpr int max_threads = N > 4 ? 512 : 1024;  // limited by the registers that N needs
        const std::int64_t threads = ceil_div<std::int64_t>(columns, 32 * N) * 32;
        if (threads <= max_threads) {
          launch(stream, norm_backward_kernel<T, N, max_threads>, static_cast<unsigned>(blocks),
                 static_cast<unsigned>(threads), 0, pointers);
        } else {
          launch(stream, norm_backward_wide_kernel<T>, static_cast<unsigned>(blocks), 512, 0, pointers);
        }
      });
    }
    if (pointers.sums != nullptr) {
      launch(stream, norm_sum_blocks_kernel<Compute>, grid_blocks(2 * columns, 32), column_total_block(blocks), 0,
             pointers.sums, blocks, columns, gpu_data<Compute>(work.d_gain), gpu_data<Compute>(work.d_bias));
    }
  });
}

const GpuKernelRegistration norm_forward_registration{norm_forward_gpu, &norm_forward};
const GpuKernelRegistration norm_backward_registration{norm_backward_gpu, &norm_backward};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
