#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/attention/statistics/head_statistics_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int tile_columns = 32, tile_warps = span_threads / tile_columns;
constexpr int rows_per_partial = 64;  // summed in the compute type before they are added in double

/// Query or key: [batch, n, heads, d].
struct Heads {
  const void* data;
  std::int64_t batch_stride, token_stride, head_stride;
};

Heads heads_of(const Tensor& x) { return {x.address(), x.strides()[0], x.strides()[1], x.strides()[2]}; }

/// Returns the sum of `mine` over the warps, for each lane.
__device__ inline double sum_of_warps(double (&sums)[tile_warps][tile_columns], double mine) {
  sums[warp_index()][lane_index()] = mine;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < tile_warps; ++warp) sum += sums[warp][lane_index()];
  __syncthreads();
  return sum;
}

/// partial [segments, heads + kv_heads, 2 d + 1]: sums of x, sums of x², tokens. A block processes 32 dimensions of one
/// head over one segment of the tokens; a warp processes every eighth token.
template <class T>
__global__ void __launch_bounds__(span_threads)
    sum_heads_kernel(Heads query, Heads key, const std::int32_t* kept, double* partial, std::int64_t tokens,
                     std::int64_t n, int n_heads, int all_heads, int segments, std::int64_t d) {
  using Compute = gpu_compute_t<T>;
  FURLONG_SHARED(double, sums, [tile_warps][tile_columns]);
  const std::int64_t column = std::int64_t{blockIdx.x} * tile_columns + lane_index();
  const int head = static_cast<int>(blockIdx.y), segment = static_cast<int>(blockIdx.z);
  // Each number is selected separately: a reference to either struct would put both into local memory.
  const bool of_query = head < n_heads;
  const std::int64_t batch_stride = of_query ? query.batch_stride : key.batch_stride;
  const std::int64_t token_stride = of_query ? query.token_stride : key.token_stride;
  const T* x = static_cast<const T*>(of_query ? query.data : key.data) +
               (of_query ? head * query.head_stride : (head - n_heads) * key.head_stride);
  const std::int64_t end = tokens * (segment + 1) / segments;
  double total = 0, total_of_squares = 0;
  Compute sum = 0, sum_of_squares = 0;
  int rows = 0, counted = 0;
  for (std::int64_t token = tokens * segment / segments + warp_index(); token < end; token += tile_warps) {
    if (kept != nullptr && kept[token] == 0) continue;
    ++counted;
    if (column < d) {
      const std::int64_t b = quotient(token, n), t = token - b * n;
      const Compute value = to_compute(x[b * batch_stride + t * token_stride + column]);
      sum += value;
      sum_of_squares = gpu_fma(value, value, sum_of_squares);
    }
    if (++rows == rows_per_partial) {
      total += static_cast<double>(sum);
      total_of_squares += static_cast<double>(sum_of_squares);
      sum = sum_of_squares = 0;
      rows = 0;
    }
  }
  double* out = partial + (static_cast<std::int64_t>(segment) * all_heads + head) * (2 * d + 1);
  const double x_sum = sum_of_warps(sums, total + static_cast<double>(sum));
  const double square_sum = sum_of_warps(sums, total_of_squares + static_cast<double>(sum_of_squares));
  const double token_sum = sum_of_warps(sums, counted);
  if (warp_index() != 0) return;
  if (column < d) {
    out[column] = x_sum;
    out[d + column] = square_sum;
  }
  if (column == 0) out[2 * d] = token_sum;
}

/// total [size] = sum over segments of partial [segments, size].
__global__ void __launch_bounds__(span_threads)
    sum_segments_kernel(const double* partial, double* total, std::int64_t size, int segments) {
  const std::int64_t index = global_thread();
  if (index >= size) return;
  double sum = 0;
  for (int segment = 0; segment < segments; ++segment) sum += partial[segment * size + index];
  total[index] = sum;
}

/// One block per query head. total [heads + kv_heads, 2 d + 1], statistics [heads, 1 + 4 d].
template <class T>
__global__ void __launch_bounds__(span_threads)
    add_totals_kernel(const double* total, T* statistics, int n_heads, int group, std::int64_t d) {
  const std::int64_t head = blockIdx.x;
  const double* query = total + head * (2 * d + 1);
  const double* key = total + (n_heads + head / group) * (2 * d + 1);
  int not_finite = 0;
  for (std::int64_t i = threadIdx.x; i < 2 * d; i += span_threads) {
    if (!gpu_is_finite(query[i]) || !gpu_is_finite(key[i])) not_finite = 1;
  }
  if (__syncthreads_or(not_finite)) return;
  T* row = statistics + head * (1 + 4 * d);
  if (threadIdx.x == 0) row[0] += static_cast<T>(query[2 * d]);
  for (std::int64_t i = threadIdx.x; i < d; i += span_threads) {
    row[1 + i] += static_cast<T>(query[i]);
    row[1 + d + i] += static_cast<T>(key[i]);
    row[1 + 2 * d + i] += static_cast<T>(query[d + i]);
    row[1 + 3 * d + i] += static_cast<T>(key[d + i]);
  }
}

}  // namespace

void add_head_statistics(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& kept,
                         const Tensor& statistics) {
  const std::int64_t batch = query.extent(0), n = query.extent(1), d = query.extent(3), tokens = batch * n;
  const int n_heads = static_cast<int>(query.extent(2)), all_heads = n_heads + static_cast<int>(key.extent(2));
  if (tokens == 0 || d == 0) return;
  const std::int64_t segments = gpu_min<std::int64_t>(ceil_div<std::int64_t>(tokens, 256), 64),
                     size = all_heads * (2 * d + 1);
  const Tensor partial = Tensor::empty({segments, size}, DType::float64, stream.device);
  const Tensor total = Tensor::empty({size}, DType::float64, stream.device);
  with_gpu_float_type(query.dtype(), "head_statistics", [&]<class T>(std::type_identity<T>) {
    const dim3 grid(grid_blocks(d, tile_columns), static_cast<unsigned>(all_heads), static_cast<unsigned>(segments));
    launch(stream, sum_heads_kernel<T>, grid, span_threads, 0, heads_of(query), heads_of(key),
           gpu_data<std::int32_t>(kept), gpu_data<double>(partial), tokens, n, n_heads, all_heads,
           static_cast<int>(segments), d);
  });
  launch(stream, sum_segments_kernel, grid_blocks(size, span_threads), span_threads, 0, gpu_data<double>(partial),
         gpu_data<double>(total), size, static_cast<int>(segments));
  const auto add_totals = [&]<class T>(std::type_identity<T>) {
    launch(stream, add_totals_kernel<T>, static_cast<unsigned>(n_heads), span_threads, 0, gpu_data<double>(total),
           gpu_data<T>(statistics), n_heads, n_heads / (all_heads - n_heads), d);
  };
  statistics.dtype() == DType::float64 ? add_totals(std::type_identity<double>{})
                                       : add_totals(std::type_identity<float>{});
}

const GpuKernelRegistration add_head_statistics_registration{add_head_statistics_gpu, &add_head_statistics};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
