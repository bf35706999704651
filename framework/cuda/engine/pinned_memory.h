#pragma once
// Pinned host memory for small copies from a device, such as a step's loss: with pageable memory the driver copies
// twice and waits for the stream once more.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "framework/cuda/engine/cuda_errors.h"

namespace furlong {

inline constexpr std::int64_t pinned_bytes = 1 << 16;

/// Returns this thread's pinned memory of pinned_bytes, valid for all devices.
inline void* pinned_memory(int index) {
  thread_local std::unique_ptr<void, decltype(&cudaFreeHost)> pinned{nullptr, &cudaFreeHost};
  if (!pinned) {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, pinned_bytes, cudaHostAllocPortable), "allocating pinned host memory", index);
    pinned.reset(memory);
  }
  return pinned.get();
}

}  // namespace furlong
