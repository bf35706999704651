// Kernels that complement cuBLASLt: bias and activation if its epilogues differ from ours, and a plain product if it
// has no algorithm.
#include "framework/cuda/kernels/kernel.h"
// kernel.h must come first.
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

using Activation = GemmEpilogue::Activation;

/// The epilogue as kernel arguments; at most one of the two biases is not null.
template <class Out>
struct EpilogueArguments {
  const Out* bias = nullptr;
  const gpu_compute_t<Out>* wide_bias = nullptr;
  Activation activation = Activation::none;
};

template <class Out>
EpilogueArguments<Out> arguments_of(const GemmEpilogue& epilogue, DType out) {
  EpilogueArguments<Out> arguments;
  arguments.activation = epilogue.activation;
  if (epilogue.bias == nullptr) return arguments;
  require(epilogue.bias->dtype() == out || epilogue.bias->dtype() == accumulate_dtype(out),
          "gemm: bias is {} for a result of {}", name_of(epilogue.bias->dtype()), name_of(out));
  if (epilogue.bias->dtype() == out) {
    arguments.bias = gpu_data<Out>(*epilogue.bias);
  } else {
    arguments.wide_bias = gpu_data<gpu_compute_t<Out>>(*epilogue.bias);
  }
  return arguments;
}

template <class Real>
__device__ inline Real activated(Real x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > Real(0) ? x : Real(0);
    case Activation::gelu:
      return Real(0.5) * x * gpu_erfc(x * Real(-0.70710678118654752440));
    case Activation::gelu_tanh: {
      // x (1 + tanh u) / 2, written without cancellation for small results.
      const Real u = Real(0.79788456080286535588) * (x + Real(0.044715) * x * x * x);
      return x / (Real(1) + gpu_exp(Real(-2) * u));
    }
    case Activation::silu:
      return x / (Real(1) + gpu_exp(-x));
  }
  return x;
}

template <class Out>
__device__ inline gpu_compute_t<Out> finished(gpu_compute_t<Out> sum, const EpilogueArguments<Out>& epilogue,
                                              std::int64_t column) {
  if (epilogue.bias != nullptr) sum += to_compute(epilogue.bias[column]);
  if (epilogue.wide_bias != nullptr) sum += epilogue.wide_bias[column];
  return activated(sum, epilogue.activation);
}

/// c[row, column] = activation(product[row, column] + bias[column]). Blocks of 256 columns; rows in strides of the
/// grid.
template <class Out>
__global__ void __launch_bounds__(256)
    gemm_epilogue_kernel(const gpu_compute_t<Out>* product, std::int64_t product_stride, Out* c, std::int64_t c_stride,
                         std::int64_t rows, std::int64_t columns, EpilogueArguments<Out> epilogue) {
  const std::int64_t column = global_thread();
  if (column >= columns) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    c[row * c_stride + column] =
        from_compute<Out>(finished<Out>(product[row * product_stride + column], epilogue, column));
  }
}

constexpr int tile = 16;  // a block computes tile x tile elements of c, one per thread

/// A matrix with strides: op(m)[i, j] is data[i * row_step + j * column_step].
template <class T>
struct Steps {
  const T* data;
  std::int64_t row_step, column_step;
};

/// c (+)= op(a) · op(b), then the epilogue. Sums run over the inner dimension in order.
template <class In, class Out>
__global__ void __launch_bounds__(tile* tile)
    gemm_tiled_kernel(Steps<In> a, Steps<In> b, Out* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                      std::int64_t inner, bool accumulate, EpilogueArguments<Out> epilogue) {
  using Sum = gpu_compute_t<Out>;
  FURLONG_SHARED(Sum, left, [tile][tile + 1]);
  FURLONG_SHARED(Sum, right, [tile][tile + 1]);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile + x, row_tiles = ceil_div(rows, tile);
  for (std::int64_t row_tile = blockIdx.y; row_tile < row_tiles; row_tile += gridDim.y) {
    const std::int64_t row = row_tile * tile + y;
    Sum sum = 0;
    for (std::int64_t start = 0; start < inner; start += tile) {
      const bool has_left = row < rows && start + x < inner, has_right = column < columns && start + y < inner;
      left[y][x] = has_left ? Sum(to_compute(a.data[row * a.row_step + (start + x) * a.column_step])) : Sum(0);
      right[y][x] = has_right ? Sum(to_compute(b.data[(start + y) * b.row_step + column * b.column_step])) : Sum(0);
      __syncthreads();
      // Excludes the padding of the last tile: zero times infinity would be NaN.
      const int terms = static_cast<int>(gpu_min(inner - start, std::int64_t{tile}));
      for (int k = 0; k < terms; ++k) sum = gpu_fma(left[y][k], right[k][x], sum);
      __syncthreads();
    }
    if (row < rows && column < columns) {
      Out& element = c[row * c_stride + column];
      if (accumulate) sum += Sum(to_compute(element));
      element = from_compute<Out>(finished<Out>(sum, epilogue, column));
    }
  }
}

constexpr std::int64_t max_grid_rows = 65535;

void gemm_epilogue(const Stream& stream, const Tensor& product, const Tensor& c, const GemmEpilogue& epilogue) {
  const std::int64_t rows = c.extent(0), columns = c.extent(1);
  if (c.elements() == 0) return;
  const dim3 grid(grid_blocks(columns, 256), static_cast<unsigned>(gpu_min(rows, max_grid_rows)));
  with_gpu_float_type(c.dtype(), "gemm", [&]<class Out>(std::type_identity<Out>) {
    launch(stream, gemm_epilogue_kernel<Out>, grid, dim3(256), 0, gpu_data<gpu_compute_t<Out>>(product),
           product.strides()[0], gpu_data<Out>(c), c.strides()[0], rows, columns,
           arguments_of<Out>(epilogue, c.dtype()));
  });
}

void gemm_tiled(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  const std::int64_t rows = c.extent(0), columns = c.extent(1), inner = a.extent(transpose_a ? 0 : 1);
  if (c.elements() == 0) return;
  const dim3 grid(grid_blocks(columns, tile), static_cast<unsigned>(gpu_min(ceil_div(rows, tile), max_grid_rows)));
  const auto run = [&]<class In, class Out>(std::type_identity<In>, std::type_identity<Out>) {
    const auto steps = [](const Tensor& m, bool transposed) {
      return Steps<In>{gpu_data<In>(m), transposed ? 1 : m.strides()[0], transposed ? m.strides()[0] : 1};
    };
    launch(stream, gemm_tiled_kernel<In, Out>, grid, dim3(tile, tile), 0, steps(a, transpose_a), steps(b, transpose_b),
           gpu_data<Out>(c), c.strides()[0], rows, columns, inner, accumulate, arguments_of<Out>(epilogue, c.dtype()));
  };
  with_gpu_float_type(a.dtype(), "gemm", [&]<class In>(std::type_identity<In> in) {
    if (c.dtype() == a.dtype()) {
      run(in, in);
    } else {
      run(in, std::type_identity<gpu_compute_t<In>>{});
    }
  });
}

const GpuKernelRegistration gemm_epilogue_registration{gemm_epilogue_gpu, &gemm_epilogue};
const GpuKernelRegistration gemm_tiled_registration{gemm_tiled_gpu, &gemm_tiled};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
