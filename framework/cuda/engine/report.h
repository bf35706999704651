#pragma once
// CUDA support of this build and of this machine, for `furlong doctor`.
#include <optional>
#include <string>
#include <vector>

#include "framework/core/gpu_engine.h"

namespace furlong {

struct CudaLibraryReport {
  std::string name, use;
  std::string version, path;  ///< empty if the library was not found
  std::string problem;        ///< why it was not found
};

struct CudaDeviceReport {
  GpuDescription description;
  std::string unavailable;  ///< why the device cannot be used; empty if it can
};

struct CudaReport {
  std::string toolkit;        ///< toolkit of this build: "13.0.88"
  std::string architectures;  ///< architectures with code: "80-real 90-real 90-virtual"
  std::string driver;         ///< latest CUDA version that the driver supports; empty if there is no driver
  std::string unavailable;    ///< why the first device cannot be used; empty if it can
  std::vector<CudaDeviceReport> devices;
  std::vector<CudaLibraryReport> libraries;
};

/// Returns nothing if the program was built without the CUDA toolkit. Loads the libraries to query their versions.
std::optional<CudaReport> cuda_report();

/// Registers the engine's report. For a static object of the file that defines the engine.
class CudaReportRegistration {
 public:
  explicit CudaReportRegistration(CudaReport (*function)());
};

}  // namespace furlong
