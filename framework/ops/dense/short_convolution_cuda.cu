#include "framework/cuda/kernels/kernel.h"

#include <algorithm>

#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/dense/short_convolution_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

// Each thread owns a vector of channels and a few consecutive rows. Rows read twice, or by neighboring threads, come
// from the cache, so global memory is read once. Each sum is over the taps in order, so a sequence processed in pieces
// gives the bits of the whole.

inline constexpr int rows_a_thread = 4;

/// The inputs of one batch entry, starting with the history.
template <class T>
struct ConvolutionInputs {
  const T *x, *history;       // [batch, n, channels], strides below; [batch, width - 1, channels], or null
  const std::int32_t* place;  // [batch, n], position of each token in its document; null: one document
  std::int64_t n, batch_stride, row_stride, channels, before;

  ConvolutionInputs(const Tensor& x_, const Tensor& history_, const Tensor& positions, std::int64_t width)
      : x(gpu_data<T>(x_)),
        history(gpu_data<T>(history_)),
        place(gpu_data<std::int32_t>(positions)),
        n(x_.extent(1)),
        batch_stride(x_.strides()[0]),
        row_stride(x_.strides()[1]),
        channels(x_.extent(2)),
        before(width - 1) {}
  /// Returns whether vectors of channels start at multiples of 16 bytes.
  bool aligned() const {
    const std::int64_t width = vector_width<T>;
    return all_aligned(x, history) && batch_stride % width == 0 && row_stride % width == 0 && channels % width == 0;
  }
  /// Returns the row `back` positions before row t; null if its document does not reach that far.
  __device__ const T* row(std::int64_t batch, std::int64_t t, std::int64_t back) const {
    if (place != nullptr && back > place[batch * n + t]) return nullptr;
    if (t >= back) return x + batch * batch_stride + (t - back) * row_stride;
    return history != nullptr ? history + (batch * before + before + t - back) * channels : nullptr;
  }
};

/// Grid of blocks: 32 vectors of channels by several groups of rows, over batch · ⌈n / rows_a_thread⌉ groups and the
/// ranges of channels.
struct ConvolutionGrid {
  std::int64_t groups, groups_a_sequence;
  dim3 blocks, threads;

  ConvolutionGrid(std::int64_t batch, std::int64_t n, std::int64_t channels, int vector)
      : groups(batch * ceil_div<std::int64_t>(n, rows_a_thread)),
        groups_a_sequence(ceil_div<std::int64_t>(n, rows_a_thread)),
        threads(32, power_of_two_up_to(groups, 8)) {
    const std::int64_t ranges = ceil_div<std::int64_t>(channels, 32 * vector);
    require(ranges <= 65535, "short_convolution: {} channels exceed the kernel's limit", channels);
    blocks = dim3(grid_blocks(groups, threads.y), static_cast<unsigned>(ranges));
  }
};
/// The position of a thread in this grid.
struct ConvolutionPlace {
  std::int64_t group, batch, t, channel;
  template <int N>
  __device__ static ConvolutionPlace current(std::integral_constant<int, N>, std::int64_t groups_a_sequence) {
    const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    return {group, group / groups_a_sequence, group % groups_a_sequence * rows_a_thread,
            (static_cast<std::int64_t>(blockIdx.y) * 32 + threadIdx.x) * N};
  }
};

template <class T, int N>
__global__ void __launch_bounds__(256)
    convolution_kernel(ConvolutionInputs<T> inputs, const gpu_compute_t<T>* taps, T* y, std::int64_t groups,
                       std::int64_t groups_a_sequence, bool aligned) {
  using Compute = gpu_compute_t<T>;
  const auto [group, batch, first, channel] =
      ConvolutionPlace::current(std::integral_constant<int, N>{}, groups_a_sequence);
  if (group >= groups || channel >= inputs.channels) return;
  Compute sums[rows_a_thread][N] = {};
  for (std::int64_t back = inputs.before; back >= 0; --back) {
    Compute tap[N];
    load_values<N>(taps + (inputs.before - back) * inputs.channels + channel, aligned, tap);
    FURLONG_UNROLL
    for (int r = 0; r < rows_a_thread; ++r) {
      const T* row = first + r < inputs.n ? inputs.row(batch, first + r, back) : nullptr;
      if (row == nullptr) continue;
      Compute x[N];
      load_values<N>(row + channel, aligned, x);
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) sums[r][i] = gpu_fma(tap[i], x[i], sums[r][i]);
    }
  }
  FURLONG_UNROLL
  for (int r = 0; r < rows_a_thread; ++r) {
    if (first + r < inputs.n)
      store_values<N>(y + (batch * inputs.n + first + r) * inputs.channels + channel, aligned, sums[r]);
  }
}

void convolve(const Stream& stream, const Tensor& x, const Tensor& by_tap, const Tensor& history,
              const Tensor& positions, const Tensor& y) {
  if (y.elements() == 0) return;
  with_gpu_float_type(x.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    const ConvolutionInputs<T> inputs(x, history, positions, by_tap.extent(0));
    const auto* taps = gpu_data<gpu_compute_t<T>>(by_tap);
    const bool aligned = inputs.aligned() && all_aligned(taps, gpu_data<T>(y));
    with_vector_width<T>(inputs.channels, [&]<int N>(std::integral_constant<int, N>) {
      const ConvolutionGrid grid(x.extent(0), inputs.n, inputs.channels, N);
      launch(stream, convolution_kernel<T, N>, grid.blocks, grid.threads, 0, inputs, taps, gpu_data<T>(y), grid.groups,
             grid.groups_a_sequence, aligned);
    });
  });
}

/// d_x[t] = Σ_j weight[j] · d_y[t + (width - 1) - j], within d_y and the document.
template <class T>
struct InputGradientPointers {
  const T* d_y;
  const gpu_compute_t<T>* taps;
  const std::int32_t* place;
  T* d_x;
  std::int64_t n, channels, width, batch_stride, row_stride;
  bool accumulate, aligned;
};

template <class T, int N>
__global__ void __launch_bounds__(256)
    convolution_d_x_kernel(InputGradientPointers<T> work, std::int64_t groups, std::int64_t groups_a_sequence) {
  using Compute = gpu_compute_t<T>;
  const auto [group, batch, first, channel] =
      ConvolutionPlace::current(std::integral_constant<int, N>{}, groups_a_sequence);
  if (group >= groups || channel >= work.channels) return;
  T* d_x = work.d_x + batch * work.batch_stride + channel;
  Compute sums[rows_a_thread][N] = {};
  FURLONG_UNROLL
  for (int r = 0; r < rows_a_thread; ++r) {
    if (work.accumulate && first + r < work.n)
      load_values<N>(d_x + (first + r) * work.row_stride, work.aligned, sums[r]);
  }
  for (std::int64_t ahead = work.width - 1; ahead >= 0; --ahead) {
    Compute tap[N];
    load_values<N>(work.taps + (work.width - 1 - ahead) * work.channels + channel, work.aligned, tap);
    FURLONG_UNROLL
    for (int r = 0; r < rows_a_thread; ++r) {
      const std::int64_t from = first + r + ahead;
      // This token is in the document of the token `ahead` positions later if that token's position is at least
      // `ahead`.
      if (from >= work.n || (work.place != nullptr && work.place[batch * work.n + from] < ahead)) continue;
      Compute d_y[N];
      load_values<N>(work.d_y + (batch * work.n + from) * work.channels + channel, work.aligned, d_y);
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) sums[r][i] = gpu_fma(tap[i], d_y[i], sums[r][i]);
    }
  }
  FURLONG_UNROLL
  for (int r = 0; r < rows_a_thread; ++r) {
    if (first + r < work.n) store_values<N>(d_x + (first + r) * work.row_stride, work.aligned, sums[r]);
  }
}

void convolution_d_x(const Stream& stream, const Tensor& d_y, const Tensor& by_tap, const Tensor& positions,
                     const GradientTarget& d_x) {
  if (d_y.elements() == 0) return;
  with_gpu_float_type(d_y.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    InputGradientPointers<T> work{gpu_data<T>(d_y),
                                  gpu_data<gpu_compute_t<T>>(by_tap),
                                  gpu_data<std::int32_t>(positions),
                                  gpu_data<T>(d_x.tensor),
                                  d_y.extent(1),
                                  d_y.extent(2),
                                  by_tap.extent(0),
                                  d_x.tensor.strides()[0],
                                  d_x.tensor.strides()[1],
                                  d_x.accumulates(),
                                  false};
    work.aligned = all_aligned(work.d_y, work.taps, work.d_x) && work.batch_stride % vector_width<T> == 0 &&
                   work.row_stride % vector_width<T> == 0;
    with_vector_width<T>(work.channels, [&]<int N>(std::integral_constant<int, N>) {
      const ConvolutionGrid grid(d_y.extent(0), work.n, work.channels, N);
      launch(stream, convolution_d_x_kernel<T, N>, grid.blocks, grid.threads, 0, work, grid.groups,
             grid.groups_a_sequence);
    });
  });
}

inline constexpr int taps_a_thread = 4;

/// partial[block, j, c] = Σ over the block's rows of d_y[t, c] · x[t - (width - 1) + j, c]. A block of rows for each
/// blockIdx.x, a range of channels for each y, four taps for each z.
template <class T, int N>
__global__ void __launch_bounds__(128)
    convolution_d_taps_kernel(ConvolutionInputs<T> inputs, const T* d_y, std::int64_t rows, gpu_compute_t<T>* partial,
                              bool aligned) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t channels = inputs.channels, blocks = gridDim.x, block = blockIdx.x, width = inputs.before + 1;
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int first_tap = static_cast<int>(blockIdx.z) * taps_a_thread;
  if (channel >= channels) return;
  Compute sums[taps_a_thread][N] = {};
  for (std::int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) {
    const std::int64_t batch = row / inputs.n, t = row % inputs.n;
    Compute d[N], x[N];
    load_values<N>(d_y + row * channels + channel, aligned, d);
    FURLONG_UNROLL
    for (int j = 0; j < taps_a_thread; ++j) {
      const T* from = first_tap + j < width ? inputs.row(batch, t, inputs.before - first_tap - j) : nullptr;
      if (from == nullptr) continue;
      load_values<N>(from + channel, aligned, x);
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) sums[j][i] = gpu_fma(d[i], x[i], sums[j][i]);
    }
  }
  FURLONG_UNROLL
  for (int j = 0; j < taps_a_thread; ++j) {
    if (first_tap + j < width)
      store_values<N>(partial + (block * width + first_tap + j) * channels + channel, aligned, sums[j]);
  }
}

/// d_weight[c, j] (+)= Σ over the blocks of partial[block, j, c]
template <class Sum, class To>
__global__ void __launch_bounds__(1024)
    convolution_d_weight_kernel(const Sum* partial, std::int64_t blocks, std::int64_t width, std::int64_t channels,
                                To* d_weight, bool accumulate) {
  const Sum total = column_total(partial, blocks, width * channels);
  const std::int64_t i = global_thread();
  if (threadIdx.y > 0 || i >= width * channels) return;
  To& place = d_weight[i % channels * width + i / channels];
  const auto gradient = static_cast<gpu_compute_t<To>>(total);
  place = from_compute<To>(accumulate ? to_compute(place) + gradient : gradient);
}

void convolution_d_weight(const Stream& stream, const Tensor& x, const Tensor& history, const Tensor& positions,
                          const Tensor& d_y, const Tensor& partial, const GradientTarget& d_weight) {
  const std::int64_t blocks = partial.extent(0), width = partial.extent(1), channels = partial.extent(2),
                     rows = d_y.shape().rows();
  if (channels == 0) return;
  with_gpu_float_type(x.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    const ConvolutionInputs<T> inputs(x, history, positions, width);
    auto* sums = gpu_data<Compute>(partial);
    const bool aligned = inputs.aligned() && all_aligned(gpu_data<T>(d_y), sums);
    with_vector_width<T>(channels, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(channels, 32 * N), 4);
      const std::int64_t ranges = ceil_div<std::int64_t>(channels, static_cast<std::int64_t>(threads) * N);
      require(ranges <= 65535, "short_convolution: {} channels exceed the kernel's limit", channels);
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ranges),
                      static_cast<unsigned>(ceil_div<std::int64_t>(width, taps_a_thread)));
      launch(stream, convolution_d_taps_kernel<T, N>, grid, threads, 0, inputs, gpu_data<T>(d_y), rows, sums, aligned);
    });
    with_gpu_float_type(d_weight.tensor.dtype(), "short_convolution", [&]<class To>(std::type_identity<To>) {
      launch(stream, convolution_d_weight_kernel<Compute, To>, grid_blocks(width * channels, 32),
             column_total_block(blocks), 0, sums, blocks, width, channels, gpu_data<To>(d_weight.tensor),
             d_weight.accumulates());
    });
  });
}

/// by_tap[j, c] = weight[c, j]
template <class T>
__global__ void __launch_bounds__(256)
    convolution_taps_kernel(const T* weight, std::int64_t channels, std::int64_t width, gpu_compute_t<T>* by_tap) {
  const std::int64_t i = global_thread();
  if (i < channels * width) by_tap[i] = to_compute(weight[i % channels * width + i / channels]);
}

void convolution_taps(const Stream& stream, const Tensor& weight, const Tensor& by_tap) {
  if (weight.elements() == 0) return;
  with_gpu_float_type(weight.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    launch(stream, convolution_taps_kernel<T>, grid_blocks(weight.elements(), 256), 256, 0, gpu_data<T>(weight),
           weight.extent(0), weight.extent(1), gpu_data<gpu_compute_t<T>>(by_tap));
  });
}

/// Writes the last width - 1 inputs. One thread per channel of a sequence, oldest input first. If the history is
/// overwritten in place, each thread reads n >= 1 rows ahead of where it writes.
template <class T>
__global__ void __launch_bounds__(256)
    convolution_history_kernel(ConvolutionInputs<T> inputs, std::int64_t batches, T* updated) {
  const std::int64_t i = global_thread(), batch = i / inputs.channels, channel = i % inputs.channels;
  if (batch >= batches) return;
  for (std::int64_t place = 0; place < inputs.before; ++place) {
    const T* from = inputs.row(batch, inputs.n - 1, inputs.before - 1 - place);
    updated[(batch * inputs.before + place) * inputs.channels + channel] =
        from != nullptr ? from[channel] : from_compute<T>(0);
  }
}

void convolution_history(const Stream& stream, const Tensor& x, const Tensor& history, const Tensor& updated_history) {
  const std::int64_t batch = x.extent(0), channels = x.extent(2);
  if (updated_history.elements() == 0) return;
  with_gpu_float_type(x.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    const ConvolutionInputs<T> inputs(x, history, Tensor{}, updated_history.extent(1) + 1);
    launch(stream, convolution_history_kernel<T>, grid_blocks(batch * channels, 256), 256, 0, inputs, batch,
           gpu_data<T>(updated_history));
  });
}

const GpuKernelRegistration convolution_registration{short_convolution_gpu, &convolve};
const GpuKernelRegistration convolution_taps_registration{short_convolution_taps_gpu, &convolution_taps};
const GpuKernelRegistration convolution_history_registration{short_convolution_history_gpu, &convolution_history};
const GpuKernelRegistration convolution_d_x_registration{short_convolution_d_x_gpu, &convolution_d_x};
const GpuKernelRegistration convolution_d_weight_registration{short_convolution_d_weight_gpu, &convolution_d_weight};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
