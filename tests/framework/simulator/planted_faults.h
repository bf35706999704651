#pragma once
// Kernels with deliberate faults: a clean run of other kernels means something only if the simulator detects these.
#include "framework/cuda/kernels/kernel.h"

namespace furlong::planted {

/// Each thread reads what its neighbor wrote to shared memory; `wait` adds the barrier that must lie between.
__global__ inline void neighbor(float* out, bool wait) {
  FURLONG_SHARED(float, values, [64]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (wait) __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
}

/// Every block adds to one number, with an atomic if `atomic`.
__global__ inline void add_to_one(float* out, bool atomic) {
  if (threadIdx.x != 0) return;
  if (atomic) {
    atomicAdd(out, 1.0f);
  } else {
    *out += 1.0f;
  }
}

/// Writes `written` of 32 elements in static shared memory, and `written_dynamic` elements in dynamic shared memory.
__global__ inline void fill_shared(int written, int written_dynamic, float* out) {
  FURLONG_SHARED(float, tile, [32]);
  FURLONG_DYNAMIC_SHARED(float, all);
  if (threadIdx.x == 0) {
    float* element = tile;  // through a pointer, so that the compiler does not reason from the array's bounds
    for (int i = 0; i < written; ++i) element[i] = 1.0f;
    for (int i = 0; i < written_dynamic; ++i) all[i] = 2.0f;
  }
  __syncthreads();
  if (global_thread() == 0) *out = tile[0];
}

/// Writes n + 1 elements to global memory.
__global__ inline void write_past_end(float* out, std::int64_t n) {
  for (std::int64_t i = global_thread(); i <= n; i += grid_stride()) out[i] = 1.0f;
}

/// Copies 128 floats through shared memory with cp.async; waits for the copies before reading only if `wait`.
__global__ inline void copy_through_shared(const float* source, float* out, bool wait) {
  FURLONG_SHARED(float, tile, [128]);
  cp_async16(&tile[4 * threadIdx.x], source + 4 * threadIdx.x);
  cp_async_commit();
  if (wait) cp_async_wait<0>();
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = tile[(4 * threadIdx.x + i + 4) % 128];
  __syncthreads();
  cp_async_wait<0>();
}

/// Exits with a copy that no thread has waited for.
__global__ inline void exit_with_pending_copy(const float* source) {
  FURLONG_SHARED(float, tile, [128]);
  cp_async16(&tile[4 * threadIdx.x], source + 4 * threadIdx.x);
  cp_async_commit();
}

inline constexpr int divergent_line = __LINE__ + 4;
/// Half of the block waits in one barrier, half in another.
__global__ inline void divergent_barrier() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

/// A barrier after some threads have exited.
__global__ inline void barrier_after_end() {
  if (threadIdx.x >= 48) return;
  __syncthreads();
}

/// Half of each warp waits for the warp, half for the block.
__global__ inline void deadlock() {
  if (threadIdx.x % 32 < 16) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

/// A sum over a warp in which some lanes have exited.
__global__ inline void warp_sum_after_end(float* out) {
  if (threadIdx.x % 32 >= 20) return;
  out[threadIdx.x] = warp_sum(1.0f);
}

/// Two branches of one warp, each in its own shuffle with the whole warp's mask.
__global__ inline void divergent_shuffle(int* out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __shfl_sync(full_warp, 1, 0);
  } else {
    out[threadIdx.x] = __shfl_sync(full_warp, 2, 1);
  }
}

/// A shuffle whose mask excludes the caller, and a shuffle from a lane outside its mask.
__global__ inline void foreign_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }
__global__ inline void foreign_source(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}

/// A 16-byte load from an address that is a multiple of 4 only.
__global__ inline void unaligned_vector(const float* source, float* out) {
  out[threadIdx.x] = load_vector<4>(source + threadIdx.x)[0];
}

/// Reads unwritten shared memory.
__global__ inline void unwritten(float* out) {
  FURLONG_SHARED(float, values, [32]);
  out[threadIdx.x] = values[threadIdx.x];
}

/// Declares more static shared memory than allowed.
__global__ inline void too_much_shared(float* out) {
  FURLONG_SHARED(float, values, [12 * 1024 + 1]);
  values[threadIdx.x] = 1.0f;
  out[threadIdx.x] = values[threadIdx.x];
}

}  // namespace furlong::planted
