#pragma once
// Errors of CUDA's runtime as errors of ours. Includes CUDA's headers: for files of the CUDA engine only.
#include <cuda_runtime_api.h>

#include <string>

namespace furlong {

/// "cudaErrorMemoryAllocation (out of memory)"
std::string cuda_error_text(cudaError_t error);

/// Whether work on the device itself has failed. Every later call then returns the same, whatever it was for.
bool is_device_fault(cudaError_t error);

/// Throws MachineError with `what` failed on device `index`, or DeviceFault, unless `error` is cudaSuccess. The runtime
/// forgets the error.
void check_cuda(cudaError_t error, const char* what, int index);

}  // namespace furlong
