#pragma once
// Explains whether CUDA can be used. Kept apart from the code that queries CUDA, so that every case can be tested
// without a GPU.
#include <optional>
#include <string>

namespace furlong {

/// What was found on this machine. Each member depends on the ones before it.
struct CudaFindings {
  /// Version of the linked CUDA runtime: 13000 for 13.0.
  int toolkit_version = 0;
  /// Latest CUDA version that the driver supports; 0 if there is no driver.
  int driver_version = 0;
  /// Error of cudaGetDeviceCount, "cudaErrorNoDevice (...)"; empty if it succeeded.
  std::string count_error;
  /// cudaGetDeviceCount reported that the driver is too old.
  bool driver_too_old = false;
  /// cudaGetDeviceCount reported no device.
  bool no_device = false;
  /// Number of devices visible to this process.
  int device_count = 0;
  /// CUDA_VISIBLE_DEVICES, if set.
  std::optional<std::string> visible_devices;
  /// Name of the requested device, and the error of querying its properties.
  std::string device_name, device_error;
  /// Compute capability: 10 major + minor.
  int capability = 0;
  /// The driver can map memory to addresses reserved earlier.
  bool virtual_memory = true;
  /// Architectures that this build has code for: "80-real 90-real 90-virtual".
  std::string architectures;
  /// Why cuBLASLt cannot be used; empty if it can.
  std::string library_problem;
  /// Error of creating the device's context; queried last.
  std::string context_error;
};

/// The lowest compute capability that the kernels support. They need bfloat16 tensor cores and asynchronous copies.
inline constexpr int min_capability = 80;

/// Returns whether code for `architectures` (CMake syntax; "90" means both kinds) runs on a device. Machine code runs
/// on the same major version and the same or a later minor version. Intermediate code (PTX) runs on the same and any
/// later version.
bool runs_on(const std::string& architectures, int capability);
/// Returns whether `architectures` includes machine code for the device. If not, the driver compiles PTX first.
bool has_machine_code(const std::string& architectures, int capability);

/// Returns why device `index` cannot be used, naming the missing part (driver, device, architecture, library).
/// Returns an empty string if it can be used.
std::string why_unavailable(const CudaFindings& found, int index);

/// Returns "13.0" for 13000.
std::string cuda_version_text(int version);

}  // namespace furlong
