#pragma once
// The header that all kernels include. Under nvcc it provides CUDA; under the host compiler the simulator (simulator.h)
// replaces CUDA. Everything below means the same in both. A file NAME_cuda.cu contains kernels and their launchers in
// the namespace FURLONG_GPU, whose name differs between the two so that both can be linked into one program. Such a
// file includes this header first.
#ifndef FURLONG_GPU
#ifdef __CUDACC__
#define FURLONG_GPU cuda_engine
#else
#define FURLONG_GPU simulated_engine
#endif
#endif

#ifdef __CUDACC__
// Under nvcc, fmt drops constexpr from some functions but not from all of their callers. This must come before fmt, so
// include kernel.h first.
#ifndef FMT_USE_CONSTEXPR
#define FMT_USE_CONSTEXPR 1
#endif
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <source_location>

#include "framework/cuda/engine/queue.h"
#else
#include "framework/simulator/simulator.h"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/random.h"
#include "framework/core/tensor.h"

// FURLONG_SHARED(float, tile, [64][17]); declares shared memory of the block, uninitialized and 16-byte aligned.
// Without brackets it declares a single variable. A type with a comma needs an alias. FURLONG_DYNAMIC_SHARED(float,
// all); declares a pointer to the dynamic shared memory of the launch.
#ifdef __CUDACC__
#define FURLONG_SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define FURLONG_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char furlong_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(furlong_dynamic_shared)
#define FURLONG_UNROLL _Pragma("unroll")
#else
#define FURLONG_SHARED(type, name, ...)           \
  using name##_shared_type = type __VA_ARGS__;    \
  static char name##_shared_key;                  \
  auto& name = *static_cast<name##_shared_type*>( \
      ::furlong::simulator::shared_variable(&name##_shared_key, sizeof(name##_shared_type), #name))
#define FURLONG_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(::furlong::simulator::dynamic_shared())
#define FURLONG_UNROLL
#endif

namespace furlong {
inline namespace FURLONG_GPU {

// ---- On the host: launching ----

/// The device type that this compilation of a kernel file is for.
#ifdef __CUDACC__
inline constexpr DeviceType this_engine = DeviceType::cuda;
#else
inline constexpr DeviceType this_engine = DeviceType::simulated;
#endif

/// A stream and the source location of the launch. Converts implicitly from Stream in a call of launch().
struct LaunchTarget {
  const Stream& stream;
  std::source_location site;
  LaunchTarget(const Stream& target, std::source_location launched_at = std::source_location::current())
      : stream(target), site(launched_at) {}
};

/// Launches kernel(arguments...) on the stream. `grid`: y and z at most 65535, none 0. `block`: a multiple of 32
/// threads, at most 1024. Throws MachineError if CUDA refuses the launch, DeviceFault if earlier work has failed, and
/// ContractError if no device supports the sizes. A fault inside the kernel is reported when the stream is waited for;
/// on the simulator, immediately.
template <class... Parameters, class... Arguments>
void launch(const LaunchTarget& target, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t dynamic_shared_bytes, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel must be launched with all of its arguments");
  require(target.stream.device.type == this_engine, "{}:{}: a kernel of another engine was launched on {}",
          target.site.file_name(), target.site.line(), target.stream.device.text());
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  require(grid.x > 0 && grid.x <= 0x7fffffffu && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535 &&
              threads > 0 && threads <= 1024 && threads % 32 == 0 && block.z <= 64,
          "{}:{}: invalid launch with a grid of ({}, {}, {}) blocks of ({}, {}, {}) threads", target.site.file_name(),
          target.site.line(), grid.x, grid.y, grid.z, block.x, block.y, block.z);
#ifdef __CUDACC__
  const auto queue = static_cast<cudaStream_t>(gpu_queue(target.stream));
  check_before_launch(target.stream);
  // Static and dynamic shared memory together may exceed the default limit of 48 KiB per block.
  if (dynamic_shared_bytes > 0)
    allow_shared_memory(target.stream, reinterpret_cast<const void*>(kernel), dynamic_shared_bytes);
  kernel<<<grid, block, dynamic_shared_bytes, queue>>>(static_cast<Parameters>(arguments)...);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    throw_launch_error(
        target.stream, static_cast<int>(status),
        fmt::format("{}:{}: CUDA rejected the launch of {} blocks of {} threads with {} bytes of dynamic shared memory",
                    target.site.file_name(), target.site.line(), std::uint64_t{grid.x} * grid.y * grid.z, threads,
                    dynamic_shared_bytes));
#else
  simulator::run_kernel(grid, block, dynamic_shared_bytes, target.site, kernel, arguments...);
#endif
}

/// Returns the limit of shared memory per block on the stream's device, static and dynamic together, in bytes: 163 KiB
/// on sm_80, 227 KiB on sm_90.
inline std::size_t gpu_shared_limit([[maybe_unused]] const Stream& stream) {
#ifdef __CUDACC__
  int bytes = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index);
  if (status != cudaSuccess)
    throw MachineError("{}: cannot query the shared memory limit: {}", stream.device.text(),
                       cudaGetErrorString(status));
  return static_cast<std::size_t>(bytes);
#else
  return simulator::options().shared_limit;
#endif
}

/// Returns the number of multiprocessors of the stream's device. Four on the simulator.
inline int gpu_multiprocessors([[maybe_unused]] const Stream& stream) {
#ifdef __CUDACC__
  int count = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, stream.device.index);
  if (status != cudaSuccess) {
    throw MachineError("{}: cannot query the number of multiprocessors: {}", stream.device.text(),
                       cudaGetErrorString(status));
  }
  return count;
#else
  return 4;
#endif
}

/// ceil(amount / step) for amount >= 0, step > 0.
template <class Integer>
__host__ __device__ constexpr Integer ceil_div(Integer amount, std::type_identity_t<Integer> step) {
  return (amount + step - 1) / step;
}

/// Returns the number of blocks that gives each of `elements` (> 0) a thread, with `per_block` elements per block. At
/// most `most`, for kernels that loop with grid_stride().
inline unsigned grid_blocks(std::int64_t elements, std::int64_t per_block, std::int64_t limit = 0x7fffffff) {
  const std::int64_t blocks = ceil_div(elements, per_block);
  require(elements > 0, "grid_blocks: {} elements, expected at least one", elements);
  return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

/// The type that kernels use for the elements of a tensor: bfloat16 is CUDA's own.
template <class T>
struct gpu_type {
  using type = T;
};
template <>
struct gpu_type<bfloat16> {
  using type = __nv_bfloat16;
};
static_assert(sizeof(__nv_bfloat16) == sizeof(bfloat16));

/// Returns the device address of a tensor's first element; null if the tensor is undefined. T is float, double,
/// __nv_bfloat16, std::int32_t or std::uint8_t and is checked against the dtype.
template <class T>
T* gpu_data(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return reinterpret_cast<__nv_bfloat16*>(tensor.data<bfloat16>());
  } else {
    return tensor.data<T>();
  }
}

/// Calls body(type_identity<T>), where T is the kernels' type for a floating dtype: float, double or __nv_bfloat16.
template <class Body>
void with_gpu_float_type(DType dtype, const char* op, const Body& body) {
  switch (dtype) {
    case DType::float32:
      return body(std::type_identity<float>{});
    case DType::float64:
      return body(std::type_identity<double>{});
    case DType::bfloat16:
      return body(std::type_identity<__nv_bfloat16>{});
    default:
      throw ContractError("{}: {} elements, expected a floating type", op, name_of(dtype));
  }
}

/// Returns whether an address is a multiple of `bytes`, as vector accesses require.
inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// ---- In kernels: indices ----

/// This thread's index along x in the whole grid, and the number of threads along x:
///   for (i = global_thread(); i < n; i += grid_stride())
__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }
/// This thread's index in the block, its lane, its warp, and the number of warps in the block, for any block shape.
__device__ inline int block_thread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
__device__ inline int lane_index() { return block_thread() & 31; }
__device__ inline int warp_index() { return block_thread() >> 5; }
__device__ inline int warps_in_block() { return static_cast<int>((blockDim.x * blockDim.y * blockDim.z) >> 5); }

// ---- In kernels: arithmetic ----

/// The type in which elements of storage type T are computed: float for __nv_bfloat16, else T.
template <class T>
using gpu_compute_t = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;

__device__ inline float to_compute(float x) { return x; }
__device__ inline double to_compute(double x) { return x; }
__device__ inline float to_compute(__nv_bfloat16 x) { return __bfloat162float(x); }

/// Converts to the nearest value of the storage type, ties to even.
template <class T>
__device__ inline T from_compute(gpu_compute_t<T> x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// Accurate to a few ulp. gpu_divide_fast uses the special-function unit for float: relative error near 2^-21.
__device__ inline float gpu_exp(float x) { return ::expf(x); }
__device__ inline double gpu_exp(double x) { return ::exp(x); }
__device__ inline float gpu_exp2(float x) { return ::exp2f(x); }
__device__ inline double gpu_exp2(double x) { return ::exp2(x); }
__device__ inline float gpu_log(float x) { return ::logf(x); }
__device__ inline double gpu_log(double x) { return ::log(x); }
__device__ inline float gpu_log1p(float x) { return ::log1pf(x); }
__device__ inline double gpu_log1p(double x) { return ::log1p(x); }
__device__ inline float gpu_sqrt(float x) { return ::sqrtf(x); }
__device__ inline double gpu_sqrt(double x) { return ::sqrt(x); }
__device__ inline float gpu_erfc(float x) { return ::erfcf(x); }
__device__ inline double gpu_erfc(double x) { return ::erfc(x); }
__device__ inline float gpu_pow(float x, float y) { return ::powf(x, y); }
__device__ inline double gpu_pow(double x, double y) { return ::pow(x, y); }
__device__ inline float gpu_abs(float x) { return ::fabsf(x); }
__device__ inline double gpu_abs(double x) { return ::fabs(x); }
__device__ inline float gpu_fma(float x, float y, float z) { return ::fmaf(x, y, z); }
__device__ inline double gpu_fma(double x, double y, double z) { return ::fma(x, y, z); }
#ifdef __CUDACC__
__device__ inline float gpu_rsqrt(float x) { return ::rsqrtf(x); }
__device__ inline double gpu_rsqrt(double x) { return ::rsqrt(x); }
__device__ inline float gpu_divide_fast(float x, float y) { return __fdividef(x, y); }
#else
inline float gpu_rsqrt(float x) { return 1.0f / ::sqrtf(x); }
inline double gpu_rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float gpu_divide_fast(float x, float y) { return x / y; }
#endif
/// Accurate for double, so that templates can be checked in double.
__device__ inline double gpu_divide_fast(double x, double y) { return x / y; }

/// Maximum and minimum of two numbers of one type. If one is NaN, returns the other, as fmax does.
__device__ inline float gpu_max(float x, float y) { return ::fmaxf(x, y); }
__device__ inline double gpu_max(double x, double y) { return ::fmax(x, y); }
__device__ inline float gpu_min(float x, float y) { return ::fminf(x, y); }
__device__ inline double gpu_min(double x, double y) { return ::fmin(x, y); }
template <class Integer>
requires std::is_integral_v<Integer> __host__ __device__ constexpr Integer gpu_max(Integer x,
                                                                                   std::type_identity_t<Integer> y) {
  return x < y ? y : x;
}
template <class Integer>
requires std::is_integral_v<Integer> __host__ __device__ constexpr Integer gpu_min(Integer x,
                                                                                   std::type_identity_t<Integer> y) {
  return y < x ? y : x;
}

/// Returns whether x is neither infinite nor NaN. Tests the bits, so compiler options for fast arithmetic do not
/// matter.
__device__ inline bool gpu_is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
__device__ inline bool gpu_is_finite(double x) {
#ifdef __CUDACC__
  const auto word = static_cast<unsigned long long>(__double_as_longlong(x));
#else
  const auto word = std::bit_cast<unsigned long long>(x);
#endif
  return (word & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}

/// -infinity: the initial value of a running maximum.
template <class T>
__device__ constexpr T gpu_lowest() {
  return -std::numeric_limits<T>::infinity();
}

// ---- In kernels: a warp and a block ----

inline constexpr unsigned full_warp = 0xffffffffu;

/// Sum or maximum over the 32 lanes, with the same bits in each lane and in every run. All lanes must call it.
template <class T>
__device__ inline T warp_sum(T value) {
  FURLONG_UNROLL
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(full_warp, value, step);
  return value;
}
template <class T>
__device__ inline T warp_max(T value) {
  FURLONG_UNROLL
  for (int step = 16; step > 0; step /= 2) value = gpu_max(value, __shfl_xor_sync(full_warp, value, step));
  return value;
}

/// Sum over the block, with the same bits in each thread and in every run. Adds within warps first, then over warps in
/// order. All threads must call it. Has barriers before and after its use of shared memory.
template <class T>
__device__ inline T block_sum(T value) {
  FURLONG_SHARED(T, warp_sums, [32]);
  value = warp_sum(value);
  __syncthreads();  // another thread may still read the result of an earlier call
  if (lane_index() == 0) warp_sums[warp_index()] = value;
  __syncthreads();
  T sum = warp_sums[0];
  for (int warp = 1; warp < warps_in_block(); ++warp) sum += warp_sums[warp];
  return sum;
}

// ---- In kernels: memory ----

/// N consecutive elements, read and written in one access of 2, 4, 8 or 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

/// Read and write a vector. The address must be a multiple of the vector's size (is_aligned).
template <int N, class T>
__device__ inline Vector<std::remove_const_t<T>, N> load_vector(const T* address) {
  static_assert(N * sizeof(T) <= 16 && ((N * sizeof(T)) & (N * sizeof(T) - 1)) == 0);
#ifndef __CUDACC__
  simulator::check_alignment(address, N * sizeof(T), std::source_location::current());
#endif
  return *reinterpret_cast<const Vector<std::remove_const_t<T>, N>*>(address);
}
template <int N, class T>
__device__ inline void store_vector(T* address, const Vector<T, N>& vector) {
  static_assert(N * sizeof(T) <= 16 && ((N * sizeof(T)) & (N * sizeof(T) - 1)) == 0);
#ifndef __CUDACC__
  simulator::check_alignment(address, N * sizeof(T), std::source_location::current());
#endif
  *reinterpret_cast<Vector<T, N>*>(address) = vector;
}

}  // namespace FURLONG_GPU
}  // namespace furlong

#include "framework/cuda/kernels/async_copy.h"
#include "framework/cuda/kernels/tensor_core.h"
