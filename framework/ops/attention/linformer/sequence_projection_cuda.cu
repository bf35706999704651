#include "framework/cuda/kernels/kernel.h"

#include <algorithm>

#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/attention/linformer/sequence_projection_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// [batch, n, channels] with contiguous rows.
template <class T>
struct Sequences {
  T* data;
  std::int64_t batch_stride, row_stride;

  explicit Sequences(const Tensor& tensor)
      : data(gpu_data<std::remove_const_t<T>>(tensor)),
        batch_stride(tensor.strides()[0]),
        row_stride(tensor.strides()[1]) {}
  __device__ T* row(std::int64_t batch, std::int64_t t) const { return data + batch * batch_stride + t * row_stride; }
  bool aligned() const {
    const std::int64_t width = vector_width<std::remove_const_t<T>>;
    return is_aligned(data, 16) && batch_stride % width == 0 && row_stride % width == 0;
  }
};

/// Grid of `blocks` times blocks of 32 vectors of channels; blockIdx.y is the range of channels.
inline dim3 projection_grid(std::int64_t blocks, std::int64_t channels, int vector) {
  const std::int64_t ranges = ceil_div<std::int64_t>(channels, 32 * vector);
  require(ranges <= 65535, "sequence_projection: {} channels are more than a grid can have", channels);
  return dim3(grid_blocks(blocks, 1), static_cast<unsigned>(ranges));
}
template <int N>
__device__ inline std::int64_t own_channel() {
  return (static_cast<std::int64_t>(blockIdx.y) * 32 + threadIdx.x) * N;
}

// ---- masked rows ----

template <class T, int N>
__global__ void __launch_bounds__(256)
    masked_rows_kernel(Sequences<T> target, Sequences<const T> source, const std::int32_t* keys, std::int64_t rows,
                       std::int64_t n, std::int64_t channels, bool accumulate, bool aligned) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, channel = own_channel<N>();
  if (row >= rows || channel >= channels) return;
  const bool kept = keys == nullptr || keys[row] != 0;
  if (!kept && accumulate) return;
  T* to = target.row(row / n, row % n) + channel;
  Compute values[N] = {}, before[N];
  if (kept) load_values<N>(source.row(row / n, row % n) + channel, aligned, values);
  if (accumulate) {
    load_values<N>(static_cast<const T*>(to), aligned, before);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) values[i] += before[i];
  }
  store_values<N>(to, aligned, values);
}

void masked_rows(const Stream& stream, const Tensor& target, const Tensor& source, const Tensor& keys,
                 bool accumulate) {
  if (target.elements() == 0) return;
  const std::int64_t rows = target.shape().rows(), channels = target.extent(2);
  with_gpu_float_type(target.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    const Sequences<T> to(target);
    const Sequences<const T> from(source);
    const bool aligned = to.aligned() && from.aligned();
    with_vector_width<T>(channels, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned rows_a_block = power_of_two_up_to(rows, 8);
      launch(stream, masked_rows_kernel<T, N>, projection_grid(ceil_div<std::int64_t>(rows, rows_a_block), channels, N),
             dim3(32, rows_a_block), 0, to, from, gpu_data<std::int32_t>(keys), rows, target.extent(1), channels,
             accumulate, aligned);
    });
  });
}

// ---- windows ----

/// The tokens that contribute to one row of the result.
struct Windows {
  const std::int32_t* keys;  // [batch, n], or null
  std::int64_t n, stride, windows_a_sequence;

  Windows(const Tensor& mask, std::int64_t length, std::int64_t stride_)
      : keys(gpu_data<std::int32_t>(mask)), n(length), stride(stride_), windows_a_sequence(ceil_div(length, stride_)) {}
  /// Returns the number of threads of a block that share a window's tokens. It depends on the stride alone, so that
  /// sums do not depend on the mask.
  unsigned sharers() const { return power_of_two_up_to(stride, 8); }
};
struct Window {
  const std::int32_t* keys;  // of the first token, or null
  std::int64_t batch, first, tokens;

  __device__ Window(const Windows& all, std::int64_t index) {
    batch = index / all.windows_a_sequence;
    first = index % all.windows_a_sequence * all.stride;
    tokens = gpu_min(all.stride, all.n - first);
    keys = all.keys != nullptr ? all.keys + batch * all.n + first : nullptr;
  }
  __device__ bool kept(std::int64_t j) const { return keys == nullptr || keys[j] != 0; }
  /// Returns 1 / number of kept tokens; 0 if there are none.
  template <class C>
  __device__ C weight_of_mean() const {
    std::int64_t count = keys == nullptr ? tokens : 0;
    for (std::int64_t j = 0; keys != nullptr && j < tokens; ++j) count += keys[j] != 0 ? 1 : 0;
    return count > 0 ? C(1) / static_cast<C>(count) : C(0);
  }
};

/// y = Σ_j taps[j] x_j over kept tokens, or their mean without taps. One window per blockIdx.x; the threads with equal
/// x take its tokens in turn.
template <class T, int N>
__global__ void __launch_bounds__(256)
    pool_windows_kernel(Windows windows, Sequences<const T> x, const gpu_compute_t<T>* taps, T* y,
                        std::int64_t channels, bool aligned) {
  using Compute = gpu_compute_t<T>;
  FURLONG_SHARED(Compute, parts, [8][N][32]);
  const Window window(windows, blockIdx.x);
  const std::int64_t channel = own_channel<N>();
  const bool inside = channel < channels;
  Compute sum[N] = {}, value[N], tap[N];
  for (std::int64_t j = threadIdx.y; inside && j < window.tokens; j += blockDim.y) {
    if (!window.kept(j)) continue;
    load_values<N>(x.row(window.batch, window.first + j) + channel, aligned, value);
    if (taps != nullptr) {
      load_values<N>(taps + j * channels + channel, aligned, tap);
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) sum[i] = gpu_fma(tap[i], value[i], sum[i]);
    } else {
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) sum[i] += value[i];
    }
  }
  if (threadIdx.y > 0) {
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) parts[threadIdx.y][i][threadIdx.x] = sum[i];
  }
  __syncthreads();
  if (threadIdx.y > 0 || !inside) return;
  for (unsigned sharer = 1; sharer < blockDim.y; ++sharer) {
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) sum[i] += parts[sharer][i][threadIdx.x];
  }
  const Compute scale = taps != nullptr ? Compute(1) : window.template weight_of_mean<Compute>();
  FURLONG_UNROLL
  for (int i = 0; i < N; ++i) sum[i] *= scale;
  store_values<N>(y + blockIdx.x * channels + channel, aligned, sum);
}

void pool_windows(const Stream& stream, const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                  const Tensor& y) {
  if (y.elements() == 0) return;
  const std::int64_t channels = x.extent(2);
  const Windows windows(keys, x.extent(1), stride);
  with_gpu_float_type(x.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    const Sequences<const T> from(x);
    const auto* taps = gpu_data<gpu_compute_t<T>>(by_tap);
    const bool aligned = from.aligned() && all_aligned(taps, gpu_data<T>(y));
    with_vector_width<T>(channels, [&]<int N>(std::integral_constant<int, N>) {
      launch(stream, pool_windows_kernel<T, N>, projection_grid(y.shape().rows(), channels, N),
             dim3(32, windows.sharers()), 0, windows, from, taps, gpu_data<T>(y), channels, aligned);
    });
  });
}

/// d_x_j (+)= taps[j] d_y of its window, or d_y / number of kept tokens; zero for masked tokens.
template <class T, int N>
__global__ void __launch_bounds__(256)
    pool_windows_d_x_kernel(Windows windows, const T* d_y, const gpu_compute_t<T>* taps, Sequences<T> d_x,
                            std::int64_t channels, bool accumulate, bool aligned) {
  using Compute = gpu_compute_t<T>;
  const Window window(windows, blockIdx.x);
  const std::int64_t channel = own_channel<N>();
  if (channel >= channels) return;
  const Compute scale = taps != nullptr ? Compute(1) : window.template weight_of_mean<Compute>();
  Compute d[N], value[N], factor[N];
  load_values<N>(d_y + blockIdx.x * channels + channel, aligned, d);
  for (std::int64_t j = threadIdx.y; j < window.tokens; j += blockDim.y) {
    const bool kept = window.kept(j);
    if (!kept && accumulate) continue;
    T* to = d_x.row(window.batch, window.first + j) + channel;
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) {
      value[i] = 0;
      factor[i] = scale;
    }
    if (accumulate) load_values<N>(static_cast<const T*>(to), aligned, value);
    if (kept && taps != nullptr) load_values<N>(taps + j * channels + channel, aligned, factor);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) value[i] = kept ? gpu_fma(factor[i], d[i], value[i]) : value[i];
    store_values<N>(to, aligned, value);
  }
}

void pool_windows_d_x(const Stream& stream, const Tensor& d_y, const Tensor& by_tap, const Tensor& keys,
                      std::int64_t stride, const GradientTarget& d_x) {
  if (d_y.elements() == 0) return;
  const std::int64_t channels = d_y.extent(2);
  const Windows windows(keys, d_x.tensor.extent(1), stride);
  with_gpu_float_type(d_y.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    const Sequences<T> to(d_x.tensor);
    const auto* taps = gpu_data<gpu_compute_t<T>>(by_tap);
    const bool aligned = to.aligned() && all_aligned(taps, gpu_data<T>(d_y));
    with_vector_width<T>(channels, [&]<int N>(std::integral_constant<int, N>) {
      launch(stream, pool_windows_d_x_kernel<T, N>, projection_grid(d_y.shape().rows(), channels, N),
             dim3(32, windows.sharers()), 0, windows, gpu_data<T>(d_y), taps, to, channels, d_x.accumulates(), aligned);
    });
  });
}

/// sums[part, j, c] = Σ over the part's windows of d_y[c] x_j[c]: one tap per threadIdx.y of blockIdx.x, one part per
/// blockIdx.z.
template <class T, int N>
__global__ void __launch_bounds__(256)
    pool_windows_d_taps_kernel(Windows windows, std::int64_t count, Sequences<const T> x, const T* d_y,
                               gpu_compute_t<T>* sums, std::int64_t channels, bool aligned) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, channel = own_channel<N>();
  const std::int64_t part = blockIdx.z, parts = gridDim.z;
  if (j >= windows.stride || channel >= channels) return;
  Compute sum[N] = {}, d[N], value[N];
  for (std::int64_t index = count * part / parts; index < count * (part + 1) / parts; ++index) {
    const Window window(windows, index);
    if (j >= window.tokens || !window.kept(j)) continue;
    load_values<N>(d_y + index * channels + channel, aligned, d);
    load_values<N>(x.row(window.batch, window.first + j) + channel, aligned, value);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) sum[i] = gpu_fma(d[i], value[i], sum[i]);
  }
  store_values<N>(sums + (part * windows.stride + j) * channels + channel, aligned, sum);
}

/// d_weight[c, j] (+)= Σ over the parts and over the channels c, c + rows, ... that share the weight.
template <class Sum, class To>
__global__ void __launch_bounds__(256)
    projection_d_weight_kernel(const Sum* sums, std::int64_t parts, std::int64_t stride, std::int64_t channels,
                               std::int64_t rows, To* d_weight, bool accumulate) {
  const std::int64_t i = global_thread(), j = i / rows, c = i % rows;
  if (j >= stride) return;
  Sum total = 0;
  for (std::int64_t channel = c; channel < channels; channel += rows) {
    for (std::int64_t part = 0; part < parts; ++part) total += sums[(part * stride + j) * channels + channel];
  }
  To& place = d_weight[c * stride + j];
  const auto gradient = static_cast<gpu_compute_t<To>>(total);
  place = from_compute<To>(accumulate ? to_compute(place) + gradient : gradient);
}

void pool_windows_d_weight(const Stream& stream, const Tensor& x, const Tensor& d_y, const Tensor& keys,
                           const Tensor& by_tap_sums, const GradientTarget& d_weight) {
  const std::int64_t stride = by_tap_sums.extent(0), channels = by_tap_sums.extent(1), count = d_y.shape().rows();
  if (d_weight.tensor.elements() == 0) return;
  // Few taps and many windows would leave most of a GPU idle, so windows are summed in parts of at least 64.
  const std::int64_t parts = std::clamp<std::int64_t>(count / 64, 1, 64);
  const Tensor partial = parts == 1 ? by_tap_sums.reshape({1, stride, channels})
                                    : Tensor::empty({parts, stride, channels}, by_tap_sums.dtype(), stream.device);
  const Windows windows(keys, x.extent(1), stride);
  with_gpu_float_type(x.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    const Sequences<const T> from(x);
    auto* sums = gpu_data<Compute>(partial);
    const bool aligned = from.aligned() && all_aligned(sums, gpu_data<T>(d_y));
    with_vector_width<T>(channels, [&]<int N>(std::integral_constant<int, N>) {
      dim3 grid = projection_grid(ceil_div<std::int64_t>(stride, windows.sharers()), channels, N);
      grid.z = static_cast<unsigned>(parts);
      launch(stream, pool_windows_d_taps_kernel<T, N>, grid, dim3(32, windows.sharers()), 0, windows, count, from,
             gpu_data<T>(d_y), sums, channels, aligned);
    });
    with_gpu_float_type(d_weight.tensor.dtype(), "sequence_projection", [&]<class To>(std::type_identity<To>) {
      const std::int64_t rows = d_weight.tensor.extent(0);
      launch(stream, projection_d_weight_kernel<Compute, To>, grid_blocks(rows * stride, 256), 256, 0, sums, parts,
             stride, channels, rows, gpu_data<To>(d_weight.tensor), d_weight.accumulates());
    });
  });
}

// ---- the weight by taps, the mask of rows ----

template <class T>
__global__ void __launch_bounds__(256) projection_taps_kernel(const T* weight, std::int64_t rows, std::int64_t stride,
                                                              std::int64_t channels, gpu_compute_t<T>* by_tap) {
  const std::int64_t i = global_thread(), j = i / channels, c = i % channels;
  if (j < stride) by_tap[i] = to_compute(weight[c % rows * stride + j]);
}

void projection_taps(const Stream& stream, const Tensor& weight, const Tensor& by_tap) {
  if (by_tap.elements() == 0) return;
  with_gpu_float_type(weight.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    launch(stream, projection_taps_kernel<T>, grid_blocks(by_tap.elements(), 256), 256, 0, gpu_data<T>(weight),
           weight.extent(0), by_tap.extent(0), by_tap.extent(1), gpu_data<gpu_compute_t<T>>(by_tap));
  });
}

/// One window per block. `stride` 0: one window for all rows of a sequence.
__global__ void __launch_bounds__(256)
    projection_mask_kernel(const std::int32_t* keys, std::int64_t n, std::int64_t rows, std::int64_t stride,
                           std::int32_t* row_keys) {
  const std::int64_t windows = stride == 0 ? 1 : rows, batch = blockIdx.x / windows, window = blockIdx.x % windows;
  const std::int64_t first = window * stride, last = stride == 0 ? n : gpu_min(first + stride, n);
  int kept = 0;
  for (std::int64_t t = first + threadIdx.x; t < last; t += blockDim.x) kept |= keys[batch * n + t] != 0 ? 1 : 0;
  kept = __syncthreads_or(kept) != 0 ? 1 : 0;
  if (stride == 0) {
    for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) row_keys[batch * rows + row] = kept;
  } else if (threadIdx.x == 0) {
    row_keys[batch * rows + window] = kept;
  }
}

void projection_mask(const Stream& stream, const Tensor& keys, std::int64_t stride, const Tensor& row_keys) {
  const std::int64_t batch = keys.extent(0), n = keys.extent(1), rows = row_keys.extent(1);
  if (row_keys.elements() == 0) return;
  const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(stride == 0 ? n : stride, 32), 8);
  launch(stream, projection_mask_kernel, grid_blocks(batch * (stride == 0 ? 1 : rows), 1), threads, 0,
         gpu_data<std::int32_t>(keys), n, rows, stride, gpu_data<std::int32_t>(row_keys));
}

const GpuKernelRegistration masked_rows_registration{masked_rows_gpu, &masked_rows};
const GpuKernelRegistration projection_taps_registration{projection_taps_gpu, &projection_taps};
const GpuKernelRegistration pool_windows_registration{pool_windows_gpu, &pool_windows};
const GpuKernelRegistration pool_windows_d_x_registration{pool_windows_d_x_gpu, &pool_windows_d_x};
const GpuKernelRegistration pool_windows_d_weight_registration{pool_windows_d_weight_gpu, &pool_windows_d_weight};
const GpuKernelRegistration projection_mask_registration{projection_mask_gpu, &projection_mask};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
