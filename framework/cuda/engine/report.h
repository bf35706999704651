#pragma once
// What this build has of CUDA and what it finds on this machine, for `furlong doctor`.
#include <optional>
#include <string>
#include <vector>

#include "framework/core/gpu_engine.h"

namespace furlong {

struct CudaLibraryReport {
  std::string name, use;
  std::string version, path;  ///< empty where it was not found
  std::string problem;        ///< why not
};

struct CudaDeviceReport {
  GpuDescription description;
  std::string unavailable;  ///< why it cannot be used; empty when it can
};

struct CudaReport {
  std::string toolkit;        ///< built with: "13.0.88"
  std::string architectures;  ///< has code for: "80-real 90-real 90-virtual"
  std::string driver;         ///< the latest CUDA that the driver knows; empty where there is none
  std::string unavailable;    ///< why the first device cannot be used; empty when it can
  std::vector<CudaDeviceReport> devices;
  std::vector<CudaLibraryReport> libraries;
};

/// Nothing where the program was built without the CUDA toolkit. Loads the libraries to find out their versions.
std::optional<CudaReport> cuda_report();

/// Makes the engine's answer known; for a static object of the file that defines the engine.
class CudaReportRegistration {
 public:
  explicit CudaReportRegistration(CudaReport (*function)());
};

}  // namespace furlong
