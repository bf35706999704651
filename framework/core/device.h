#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// Where memory lies and work runs. `simulated` runs the kernels of `cuda` on the host, one fiber per GPU thread; only
/// builds with tests have it. `shape_only` runs a step without memory or arithmetic and counts what the step would
/// allocate.
enum class DeviceType : std::uint8_t { cpu, cuda, simulated, shape_only };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_shape_only() const { return type == DeviceType::shape_only; }
  /// Whether ops run as GPU kernels on this device.
  bool is_gpu() const { return type == DeviceType::cuda || type == DeviceType::simulated; }
  /// Whether the host can read and write the device's memory.
  bool has_host_memory() const { return type == DeviceType::cpu || type == DeviceType::simulated; }
  /// "cpu", "cuda:0", "simulated", "shape_only"
  std::string text() const;
};

/// Returns the device that `device:` names in YAML: auto (a GPU if one works, else the CPU), cpu, cuda, cuda:N, and in
/// builds with tests simulated. Throws UserError if the device is unavailable and names what is missing: driver,
/// device, library or architecture. The first `auto` that leaves a usable GPU idle logs idle_gpu_warning().
Device device_from_name(const std::string& name);

struct GpuInformation;
/// Returns the warning of `device: auto` for a machine on which a driver runs one of `gpus` but the work runs on the
/// CPU; empty if no GPU has a driver. `unavailable` is the CUDA engine's reason for using no GPU; it is empty in a
/// build without that engine.
std::string idle_gpu_warning(const std::vector<GpuInformation>& gpus, const std::string& unavailable);

/// Precision of float32 matrix products (ops::gemm). Other dtypes are not affected.
struct ProductPrecision {
  /// On CUDA: allows rounding of operands to TensorFloat-32 (10 mantissa bits) so that tensor cores multiply them.
  /// Several times faster. Operands keep 3 more mantissa bits than bfloat16.
  bool tf32 = false;
  /// On the CPU: sums the inner dimension in chains of 256 terms, then adds the chains' sums. oneDNN uses a single
  /// chain on CPUs with AVX-512; short sums halve the rounding error there and take up to 2.3 times as long for few
  /// rows. Used when results are compared with another program's.
  bool short_sums = false;
};

/// An ordered queue of work on one device; every op is launched on a stream. Work on a CPU stream runs immediately. A
/// CUDA stream carries its handle; null is the device's main stream. Ops use the stream's product precision.
struct Stream {
  Device device;
  void* handle = nullptr;
  ProductPrecision products{};
};

}  // namespace furlong
