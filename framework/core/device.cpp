#include "framework/core/device.h"

#include "framework/core/error.h"

namespace furlong {

std::string Device::text() const {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda:" + std::to_string(index);
    case DeviceType::shape_only:
      return "shape_only";
  }
  return "unknown";
}

Device device_from_name(const std::string& name) {
  if (name == "cpu" || name == "auto") return Device{DeviceType::cpu, 0};
  if (name.rfind("cuda", 0) == 0) {
    throw UserError("device: '{}' cannot be had: this build has no CUDA engine; use device: cpu or device: auto", name);
  }
  throw UserError("device: '{}' is unknown; expected auto, cpu, cuda or cuda:N", name);
}

}  // namespace furlong
