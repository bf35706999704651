#include "framework/cuda/engine/cuda_errors.h"

#include <fmt/format.h>

#include "framework/core/device_fault.h"

namespace furlong {
std::string cuda_error_text(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorName(error), cudaGetErrorString(error));
}

bool is_device_fault(cudaError_t error) {
  switch (static_cast<int>(error)) {
    // cudaErrorContained, cudaErrorTensorMemoryLeak and cudaErrorExternalDevice, which older toolkits do not declare.
    case 226:
    case 721:
    case 911:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

void check_cuda(cudaError_t error, const char* what, int index) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clear the error, so that the next launch does not report it
  if (is_device_fault(error))
    throw DeviceFault("cuda:{}: work launched earlier on the device failed: {}", index, cuda_error_text(error));
  throw MachineError("cuda:{}: {} failed: {}", index, what, cuda_error_text(error));
}

}  // namespace furlong
