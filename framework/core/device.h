#pragma once
#include <cstdint>
#include <string>

namespace furlong {

/// Where memory lies and work happens. `shape_only` runs a step without memory or arithmetic: it counts what the step would allocate.
enum class DeviceType : std::uint8_t { cpu, cuda, shape_only };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_shape_only() const { return type == DeviceType::shape_only; }
  /// "cpu", "cuda:0", "shape_only"
  std::string text() const;
};

/// The device that `device:` in YAML names: auto, cpu, cuda, cuda:N. Throws UserError when it cannot be had, with what is missing.
Device device_from_name(const std::string& name);

/// An ordered queue of work on one device: what every op is launched on. A CPU stream runs at once; a CUDA stream carries its handle.
struct Stream {
  Device device;
  void* handle = nullptr;
};

}  // namespace furlong
