#pragma once
// Access to the CUDA driver. Includes CUDA headers: only for files of the CUDA engine.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <string>

namespace furlong {

/// The driver's functions for virtual memory, looked up through the runtime.
struct CudaDriver {
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuGetErrorName) get_error_name = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemGetAllocationGranularity) get_granularity = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  bool complete = true;

  CudaDriver() {
    find("cuDeviceGetAttribute", device_get_attribute);
    find("cuGetErrorName", get_error_name);
    find("cuMemAddressFree", address_free);
    find("cuMemAddressReserve", address_reserve);
    find("cuMemCreate", create);
    find("cuMemGetAllocationGranularity", get_granularity);
    find("cuMemMap", map);
    find("cuMemRelease", release);
    find("cuMemSetAccess", set_access);
    find("cuMemUnmap", unmap);
  }

  std::string text_of(CUresult result) const {
    const char* name = nullptr;
    get_error_name(result, &name);
    return name ? name : fmt::format("error {}", static_cast<int>(result));
  }

 private:
  template <class Function>
  void find(const char* name, Function& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
      cudaGetLastError();
      complete = false;
      return;
    }
    function = reinterpret_cast<Function>(address);
  }
};

/// Returns the driver's functions. Call only if a driver is installed.
inline const CudaDriver& driver() {
  static const CudaDriver found;
  return found;
}

}  // namespace furlong
