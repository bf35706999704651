#include "framework/cuda/engine/cuda_findings.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "framework/cuda/engine/cuda_errors.h"

#ifndef FURLONG_CUDA_ARCHITECTURES
#error "the build must define the architectures of the kernels"
#endif

namespace furlong {

const CudaFindings& cuda_findings() {
  static const CudaFindings found = [] {
    CudaFindings f;
    f.toolkit_version = CUDART_VERSION;
    f.architectures = FURLONG_CUDA_ARCHITECTURES;
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) f.visible_devices = visible;
    if (cudaDriverGetVersion(&f.driver_version) != cudaSuccess) f.driver_version = 0;
    const cudaError_t error = cudaGetDeviceCount(&f.device_count);
    if (error != cudaSuccess) {  // any error means that no GPU can be used
      f.device_count = 0;
      f.count_error = cuda_error_text(error);
      f.driver_too_old = error == cudaErrorInsufficientDriver;
      f.no_device = error == cudaErrorNoDevice;
    } else {
      f.no_device = f.device_count == 0;
    }
    cudaGetLastError();  // clear the error, so that later checks do not report it
    return f;
  }();
  return found;
}

}  // namespace furlong
