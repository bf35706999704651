#include "framework/core/device.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"

namespace furlong {
namespace {

Device gpu(DeviceType type, int index, const std::string& name) {
  GpuEngine* engine = gpu_engine(type);
  if (engine == nullptr) {
    const char* reason = type == DeviceType::cuda
                             ? "this program was built without CUDA support; use device: cpu, or install the CUDA "
                               "toolkit and build with FURLONG_CUDA=ON scripts/build.sh release"
                             : "this program was built without tests, and so without the simulator; use device: cpu";
    throw UserError("device: '{}' is not available: {}", name, reason);
  }
  if (const std::string reason = engine->unavailable(index); !reason.empty()) {
    throw UserError("device: '{}' is not available: {}; use device: cpu or device: auto to compute on the CPU", name,
                    reason);
  }
  return Device{type, index};
}

}  // namespace

std::string Device::text() const {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda:" + std::to_string(index);
    case DeviceType::simulated:
      return "simulated";
    case DeviceType::shape_only:
      return "shape_only";
  }
  return "unknown";
}

std::string idle_gpu_warning(const std::vector<GpuInformation>& gpus, const std::string& unavailable) {
  const auto driven = std::find_if(gpus.begin(), gpus.end(), [](const GpuInformation& gpu) { return gpu.driver; });
  if (driven == gpus.end()) return "";
  return fmt::format("device: auto computes on the CPU and leaves {} idle: {}", driven->name,
                     unavailable.empty() ? "this program was built without CUDA support; install the CUDA toolkit, "
                                           "then build with FURLONG_CUDA=ON scripts/build.sh release"
                                         : unavailable);
}

Device device_from_name(const std::string& name) {
  if (name == "cpu") return Device{};
  if (name == "auto") {
    GpuEngine* cuda = gpu_engine(DeviceType::cuda);
    for (int index = 0; cuda != nullptr && index < std::max(cuda->device_count(), 1); ++index) {
      if (cuda->unavailable(index).empty()) return Device{DeviceType::cuda, index};
    }
    // A user who expects the GPU learns from the log, once, that it is idle. A user who hides the GPU needs no warning.
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible && (!*visible || *visible == '-'))
      return Device{};
    static const std::string idle = idle_gpu_warning(read_gpus(), cuda ? cuda->unavailable(0) : "");
    if (static bool warned = false; !idle.empty() && !std::exchange(warned, true)) log_warn("{}", idle);
    return Device{};
  }
  if (name == "simulated") return gpu(DeviceType::simulated, 0, name);
  if (name == "cuda") return gpu(DeviceType::cuda, 0, name);
  constexpr std::string_view prefix = "cuda:";
  if (name.starts_with(prefix) && name.size() > prefix.size() && name.size() <= prefix.size() + 3 &&
      name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) {
    return gpu(DeviceType::cuda, std::stoi(name.substr(prefix.size())), name);
  }
  throw UserError("device: '{}' is unknown; expected auto, cpu, cuda or cuda:N", name);
}

}  // namespace furlong
