#pragma once
// Where work for CUDA is put. Free of CUDA's own headers, so that files without them can pass a queue on.
#include <cstddef>
#include <string>

#include "framework/core/device.h"

namespace furlong {

/// The cudaStream_t that a stream on CUDA stands for: its handle, or its device's main queue (non-blocking: it does not
/// wait for the legacy default stream), which is made on first use. Makes that device the calling thread's current one,
/// as a launch needs. Throws MachineError when the device cannot be had.
void* gpu_queue(const Stream& stream);

/// Throws what an earlier call or earlier work has left for the next one to find, so that a launch is not blamed for
/// it: DeviceFault, or MachineError.
void check_before_launch(const Stream& stream);
/// Throws MachineError with what CUDA (`status`, a cudaError_t) said to a launch that `launch` describes; DeviceFault
/// where it is about earlier work.
[[noreturn]] void refuse_launch(const Stream& stream, int status, const std::string& launch);

/// Lets a kernel have so much dynamic shared memory on the stream's device, which is more than it has unasked. Throws
/// MachineError where the device has less.
void allow_shared_memory(const Stream& stream, const void* kernel, std::size_t bytes);

}  // namespace furlong
