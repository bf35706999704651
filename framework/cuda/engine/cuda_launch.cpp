// Calls to the CUDA runtime before and after a launch (queue.h).
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "framework/core/device_fault.h"
#include "framework/core/error.h"
#include "framework/cuda/engine/cuda_errors.h"
#include "framework/cuda/engine/queue.h"

namespace furlong {

void check_before_launch(const Stream& stream) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess) check_cuda(error, "an earlier call whose error was not checked", stream.device.index);
}

void throw_launch_error(const Stream& stream, int status, const std::string& launch) {
  const auto error = static_cast<cudaError_t>(status);
  if (is_device_fault(error)) {
    cudaGetLastError();  // clear it, as check_cuda does
    throw DeviceFault("{} on {}, because this or earlier work failed: {}", launch, stream.device.text(),
                      cuda_error_text(error));
  }
  throw MachineError("{} on {}: {}", launch, stream.device.text(), cuda_error_text(error));
}

void allow_shared_memory(const Stream& stream, const void* kernel, std::size_t bytes) {
  // The limit is only raised: a recorded launch with a larger size must still be allowed when it is replayed.
  static std::mutex mutex;
  static auto* const allowed = new std::map<std::pair<const void*, int>, std::size_t>;
  const std::lock_guard lock(mutex);
  std::size_t& limit = (*allowed)[{kernel, stream.device.index}];
  if (bytes <= limit) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "raising a kernel's shared memory limit", stream.device.index);
  limit = bytes;
}

}  // namespace furlong
