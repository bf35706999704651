// Feature maps of whole rows on GPUs: one block computes sixteen rows.
#include "framework/cuda/kernels/kernel.h"
//
#include "framework/ops/attention/feature_maps/feature_map_gpu.h"
#include "framework/ops/attention/feature_maps/feature_map_rows_cuda.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int rows_a_block = 16, threads_a_block = 64;

/// Arguments of both kernels. T is float or double.
template <class T>
struct MapArguments {
  FeatureMap map;
  FeatureMapOptions options;
  int rows, d, m, n_projections, mean_over;
  bool is_key;
  T oprf_a;
  const T *random_projection, *x;
  T *norms, *features, *row_log;                     // norms [n_projections], scratch
  T *d_features, *d_row_log, *half_gradients, *d_x;  // half_gradients [rows], scratch
};

/// Describes this call's map to `tile`. Run by one thread.
template <class T>
__device__ inline void describe(const MapArguments<T>& a, GpuFeatureRows<T>& tile) {
  tile.map = a.map;
  tile.d = a.d;
  tile.m = a.m;
  tile.n_projections = a.n_projections;
  tile.order = static_cast<int>(a.options.order);
  tile.ld_x = a.d;
  tile.ld_m = a.m;
  tile.random_projection = a.random_projection;
  tile.direction_norms = a.norms;
  tile.constants = gpu_map_constants<T>(a.options, a.d, a.mean_over, a.oprf_a);
}

template <class T>
__global__ void __launch_bounds__(threads_a_block, 1) feature_map_norms_kernel(const MapArguments<T> a) {
  for_rows(a.n_projections, [&](int f) {
    const T square = row_dot(a.random_projection + static_cast<std::int64_t>(f) * a.d,
                             a.random_projection + static_cast<std::int64_t>(f) * a.d, a.d);
    if (lane_index() == 0) a.norms[f] = square;
  });
}

template <class T, FeatureForm form>
__global__ void __launch_bounds__(threads_a_block, 1) feature_map_features_kernel(const MapArguments<T> a) {
  FURLONG_SHARED(GpuFeatureRows<T>, tile);
  if (block_thread() == 0) describe(a, tile);
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * rows_a_block, rows = gpu_min(a.rows - first, rows_a_block);
  const T* x = a.x + static_cast<std::int64_t>(first) * a.d;
  T* features = a.features + static_cast<std::int64_t>(first) * a.m;
  if (tile.is_directed()) {
    block_gemm(tile.projection(x, rows, features), true);
    __syncthreads();
  }
  for_rows(rows, [&](int i) {
    T *const row = features + static_cast<std::int64_t>(i) * a.m,
             *row_log = a.row_log ? a.row_log + first + i : nullptr;
    tile.template feature_row<form>(x + i * a.d, a.is_key, row, row_log);
  });
}

template <class T, FeatureForm form>
__global__ void __launch_bounds__(threads_a_block, 1) feature_map_backward_kernel(const MapArguments<T> a) {
  FURLONG_SHARED(GpuFeatureRows<T>, tile);
  if (block_thread() == 0) describe(a, tile);
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * rows_a_block, rows = gpu_min(a.rows - first, rows_a_block);
  const T* x = a.x + static_cast<std::int64_t>(first) * a.d;
  T *d_features = a.d_features + static_cast<std::int64_t>(first) * a.m,
    *d_x = a.d_x + static_cast<std::int64_t>(first) * a.d;
  for_rows(rows, [&](int i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * a.m;
    const T* const row = a.features + static_cast<std::int64_t>(first) * a.m + at;
    const T d_row_log = a.d_row_log ? a.d_row_log[first + i] : T(0);
    T* const half_gradient = a.half_gradients + first + i;
    tile.template gradient_row<form>(x + i * a.d, a.is_key, row, d_features + at, d_row_log, half_gradient,
                                     d_x + i * a.d);
  });
  if (!tile.is_directed()) return;
  __syncthreads();
  block_gemm(tile.back_projection(d_features, rows, d_x), true);
  __syncthreads();
  for_rows(rows, [&](int i) {
    for_columns(a.d, [&](int c) {
      d_x[i * a.d + c] = tile.finished(x[i * a.d + c], a.half_gradients[first + i], d_x[i * a.d + c]);
    });
  });
}

template <class T>
MapArguments<T> arguments_of(const FeatureMapCall& call, const Tensor& x, const Tensor& features) {
  require(x.is_contiguous() && features.is_contiguous() && x.shape().rank() == 2 && features.shape().rank() == 2 &&
              x.extent(0) == features.extent(0) && x.elements() < (std::int64_t{1} << 31),
          "feature_map: x is {} and features are {}, expected two contiguous matrices with equal numbers of rows",
          x.shape().text(), features.shape().text());
  const FeatureMapInfo& info = feature_map_info(call.map);
  MapArguments<T> a{};
  a.map = call.map;
  a.options = call.options;
  a.rows = static_cast<int>(x.extent(0));
  a.d = static_cast<int>(x.extent(1));
  a.m = static_cast<int>(features.extent(1));
  a.n_projections = call.random_projection.defined() ? static_cast<int>(call.random_projection.extent(0)) : 0;
  a.mean_over = features_in_mean(info, a.m, a.n_projections);
  a.is_key = call.is_key;
  a.oprf_a = static_cast<T>(call.oprf_a);
  a.random_projection = gpu_data<T>(call.random_projection);
  a.x = gpu_data<T>(x);
  a.features = gpu_data<T>(features);
  return a;
}

/// Computes |ω_f|² if the map needs it, and sets a.norms. The returned tensor owns the memory.
template <class T>
Tensor prepare_norms(const Stream& stream, const FeatureMapCall& call, MapArguments<T>& a) {
  if (!feature_map_info(call.map).needs_oprf_a) return {};
  const Tensor norms =
      Tensor::empty(Shape({call.random_projection.extent(0)}), call.random_projection.dtype(), stream.device);
  a.norms = gpu_data<T>(norms);
  launch(stream, feature_map_norms_kernel<T>, 1, threads_a_block, 0, a);
  return norms;
}

bool has_logarithms(const FeatureMapCall& call) { return feature_map_info(call.map).form == FeatureForm::logarithms; }

template <class T>
void run_features(const Stream& stream, const FeatureMapCall& call, const Tensor& x, const Tensor& features,
                  const Tensor& row_log) {
  MapArguments<T> a = arguments_of<T>(call, x, features);
  a.row_log = gpu_data<T>(row_log);
  const Tensor norms = prepare_norms(stream, call, a);
  const auto kernel = has_logarithms(call) ? feature_map_features_kernel<T, FeatureForm::logarithms>
                                           : feature_map_features_kernel<T, FeatureForm::values>;
  launch(stream, kernel, grid_blocks(a.rows, rows_a_block), threads_a_block, 0, a);
}
template <class T>
void run_backward(const Stream& stream, const FeatureMapCall& call, const Tensor& x, const Tensor& features,
                  const Tensor& d_features, const Tensor& d_row_log, const Tensor& d_x) {
  MapArguments<T> a = arguments_of<T>(call, x, features);
  const Tensor half_gradients = Tensor::empty(Shape({x.extent(0)}), x.dtype(), stream.device);
  a.d_features = gpu_data<T>(d_features);
  a.d_row_log = gpu_data<T>(d_row_log);
  a.half_gradients = gpu_data<T>(half_gradients);
  a.d_x = gpu_data<T>(d_x);
  const Tensor norms = prepare_norms(stream, call, a);
  const auto kernel = has_logarithms(call) ? feature_map_backward_kernel<T, FeatureForm::logarithms>
                                           : feature_map_backward_kernel<T, FeatureForm::values>;
  launch(stream, kernel, grid_blocks(a.rows, rows_a_block), threads_a_block, 0, a);
}

void features(const Stream& stream, const FeatureMapCall& call, const Tensor& x, const Tensor& features,
              const Tensor& row_log) {
  if (x.elements() == 0) return;
  x.dtype() == DType::float64 ? run_features<double>(stream, call, x, features, row_log)
                              : run_features<float>(stream, call, x, features, row_log);
}
void backward(const Stream& stream, const FeatureMapCall& call, const Tensor& x, const Tensor& features,
              const Tensor& d_features, const Tensor& d_row_log, const Tensor& d_x) {
  if (x.elements() == 0) return;
  x.dtype() == DType::float64 ? run_backward<double>(stream, call, x, features, d_features, d_row_log, d_x)
                              : run_backward<float>(stream, call, x, features, d_features, d_row_log, d_x);
}

const GpuKernelRegistration features_registration{feature_map_features_gpu, &features};
const GpuKernelRegistration backward_registration{feature_map_backward_gpu, &backward};

}  // namespace
}  // namespace FURLONG_GPU
}  // namespace furlong::ops
