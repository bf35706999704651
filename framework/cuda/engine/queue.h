#pragma once
// Where CUDA work is enqueued. Free of CUDA headers, so that files without them can pass a queue on.
#include <cstddef>
#include <string>

#include "framework/core/device.h"

namespace furlong {

/// Returns the cudaStream_t of a CUDA stream: its handle, or its device's main queue, which is created on first use.
/// The main queue is non-blocking: it does not wait for the legacy default stream. Makes the device current for the
/// calling thread, as a launch requires. Throws MachineError if the device cannot be used.
void* gpu_queue(const Stream& stream);

/// Throws DeviceFault or MachineError if an earlier call or earlier work left an error, so that the error is not
/// attributed to the next launch.
void check_before_launch(const Stream& stream);
/// Throws MachineError with CUDA's error (`status`, a cudaError_t) for the launch that `launch` describes. Throws
/// DeviceFault if earlier work caused the error or, with CUDA_LAUNCH_BLOCKING=1, this launch.
[[noreturn]] void throw_launch_error(const Stream& stream, int status, const std::string& launch);

/// Allows a kernel to use `bytes` of dynamic shared memory on the stream's device, beyond the default limit. Throws
/// MachineError if the device has less.
void allow_shared_memory(const Stream& stream, const void* kernel, std::size_t bytes);

}  // namespace furlong
