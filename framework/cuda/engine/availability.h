#pragma once
// Whether CUDA can be used, as sentences. Kept apart from the calls that find out, so that every case can be tested
// without a GPU.
#include <optional>
#include <string>

namespace furlong {

/// What was found, in the order in which one thing needs the other.
struct CudaFindings {
  int toolkit_version = 0;      ///< of the runtime that is linked: 13000 for 13.0
  int driver_version = 0;       ///< the latest CUDA that the driver knows; 0 where there is no driver
  std::string count_error;      ///< what cudaGetDeviceCount said, "cudaErrorNoDevice (...)"; empty when it worked
  bool driver_too_old = false;  ///< it said that
  bool no_device = false;       ///< it said that, or counted none
  int device_count = 0;         ///< that the driver shows to this process
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES, where it is set
  std::string device_name, device_error;       ///< of the device asked for; what asking for its properties said
  int capability = 0;                          ///< 10 major + minor
  bool virtual_memory = true;                  ///< the driver maps memory to addresses reserved before
  std::string architectures;                   ///< what this build has code for: "80-real 90-real 90-virtual"
  std::string library_problem;                 ///< of cuBLASLt
  std::string context_error;                   ///< what beginning to use the device said; asked last
};

/// The least compute capability that the kernels are written for: bfloat16 tensor cores and asynchronous copies.
inline constexpr int least_capability = 80;

/// Whether code for `architectures` (as CMake writes them; "90" means both kinds) runs on a device: machine code on the
/// same major version and this or a later minor one, intermediate code on this and any later device.
bool runs_on(const std::string& architectures, int capability);
/// Whether it has machine code for the device; where not, the driver compiles intermediate code first.
bool has_machine_code(const std::string& architectures, int capability);

/// Why device `index` cannot be used, naming the missing part (driver, device, architecture, library); empty when it
/// can.
std::string why_unavailable(const CudaFindings& found, int index);

/// "13.0" for 13000
std::string cuda_version_text(int version);

}  // namespace furlong
