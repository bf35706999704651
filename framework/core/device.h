#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// Where memory lies and work happens. `simulated` runs the kernels of `cuda` on the host, one fibre for each of their
/// threads; only builds with tests have it. `shape_only` runs a step without memory or arithmetic: it counts what the
/// step would allocate.
enum class DeviceType : std::uint8_t { cpu, cuda, simulated, shape_only };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_shape_only() const { return type == DeviceType::shape_only; }
  /// Runs the bodies that kernels make up.
  bool is_gpu() const { return type == DeviceType::cuda || type == DeviceType::simulated; }
  /// The host may read and write its memory.
  bool has_host_memory() const { return type == DeviceType::cpu || type == DeviceType::simulated; }
  /// "cpu", "cuda:0", "simulated", "shape_only"
  std::string text() const;
};

/// The device that `device:` in YAML names: auto (a GPU where one works), cpu, cuda, cuda:N, and in builds with tests
/// simulated. Throws UserError when it cannot be had, saying which of driver, device, library or architecture is
/// missing. The first auto that leaves a working GPU idle logs idle_gpu_warning().
Device device_from_name(const std::string& name);

struct GpuInformation;
/// What `device: auto` says where a driver runs one of `gpus` and it computes on the CPU nevertheless; empty where it
/// has none. `unavailable` is why the CUDA engine takes no GPU, empty in a build without that engine.
std::string idle_gpu_warning(const std::vector<GpuInformation>& gpus, const std::string& unavailable);

/// How products of float32 are computed (ops::gemm); other dtypes do not change.
struct ProductPrecision {
  /// On CUDA: operands may be rounded to TensorFloat-32 (10 bits of mantissa), which tensor cores multiply: several
  /// times faster, with errors like bfloat16's third of a digit better.
  bool tf32 = false;
  /// On the CPU: the inner dimension is added up in chains of 256 terms and the chains' sums one after another, where
  /// oneDNN takes one chain on CPUs with AVX-512: half the rounding error there, and up to 2.3 times the time where
  /// there are few rows. For figures that are to be compared with another program's.
  bool short_sums = false;
};

/// An ordered queue of work on one device: what every op is launched on. A CPU stream runs at once; a CUDA stream
/// carries its handle, or none for the device's own main queue. What is launched on it computes with its precision.
struct Stream {
  Device device;
  void* handle = nullptr;
  ProductPrecision products{};
};

}  // namespace furlong
