#pragma once
// Copies from global to shared memory that overlap with computation (PTX ISA, "cp.async"). Part of kernel.h.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

/// Starts a copy of `Bytes` (4, 8 or 16) from global to shared memory. Both addresses must be multiples of `Bytes`.
/// Reads only the first `source_bytes` and sets the rest to zero. With 0 it reads nothing, but `global` must still be
/// an address within the tensor. The data is visible to this thread after cp_async_wait, and to other threads after a
/// later barrier.
template <int Bytes>
__device__ inline void cp_async(void* shared, const void* global, int source_bytes = Bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
#if defined(__CUDA_ARCH__)
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(target), "l"(global), "n"(Bytes),
                 "r"(source_bytes)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  simulator::async_copy(shared, global, Bytes, static_cast<std::size_t>(source_bytes), std::source_location::current());
#endif
}
__device__ inline void cp_async16(void* shared, const void* global, int source_bytes = 16) {
  cp_async<16>(shared, global, source_bytes);
}

/// Asks for the 32 bytes around an address of global memory, so that a later read finds them in the L2 cache.
__device__ inline void prefetch_l2([[maybe_unused]] const void* global) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#elif !defined(__CUDACC__)
  static_cast<void>(*static_cast<const volatile char*>(global));  // AddressSanitizer checks the address
#endif
}

/// Commits this thread's copies since the last commit as one group, which may be empty.
__device__ inline void cp_async_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#elif !defined(__CUDACC__)
  simulator::async_commit();
#endif
}

/// Waits until at most `GroupsLeft` of this thread's latest groups are pending.
template <int GroupsLeft>
__device__ inline void cp_async_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(GroupsLeft) : "memory");
#elif !defined(__CUDACC__)
  simulator::async_wait(GroupsLeft);
#endif
}

}  // namespace FURLONG_GPU
}  // namespace furlong
