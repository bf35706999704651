#pragma once
// Converts errors of the CUDA runtime to exceptions. Includes CUDA headers: only for files of the CUDA engine.
#include <cuda_runtime_api.h>

#include <string>

namespace furlong {

/// Returns "cudaErrorMemoryAllocation (out of memory)".
std::string cuda_error_text(cudaError_t error);

/// Returns whether work on the device itself has failed. Every later CUDA call then returns the same error.
bool is_device_fault(cudaError_t error);

/// Throws MachineError ("`what` failed" on device `index`) or DeviceFault unless `error` is cudaSuccess. Clears the
/// runtime's last error.
void check_cuda(cudaError_t error, const char* what, int index);

}  // namespace furlong
