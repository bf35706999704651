#include "framework/cuda/engine/availability.h"

#include <fmt/format.h>

#include <sstream>

namespace furlong {
namespace {

std::string capability_text(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

std::string visible_devices_note(const CudaFindings& found) {
  return found.visible_devices ? fmt::format(" (CUDA_VISIBLE_DEVICES is set to '{}')", *found.visible_devices) : "";
}

std::string why_no_device(const CudaFindings& found) {
  if (found.driver_version == 0) return "no NVIDIA driver is installed (libcuda.so.1 was not found)";
  const std::string driver =
      fmt::format("the NVIDIA driver, which supports CUDA {},", cuda_version_text(found.driver_version));
  if (found.driver_too_old)
    return fmt::format("{} is too old for this build, which uses CUDA {}; install a later driver", driver,
                       cuda_version_text(found.toolkit_version));
  if (found.no_device) return fmt::format("{} reports no device{}", driver, visible_devices_note(found));
  return fmt::format("{} does not work: {}{}", driver, found.count_error, visible_devices_note(found));
}

bool has_code(const std::string& architectures, int capability, bool intermediate_too) {
  std::istringstream words(architectures);
  for (std::string word; words >> word;) {
    const std::size_t digits = word.find_first_not_of("0123456789");
    const std::string number = word.substr(0, digits), rest = digits == std::string::npos ? "" : word.substr(digits);
    if (number.empty()) continue;
    const int built = std::stoi(number);
    // 90a runs only on 9.0, and 100f only on 10.x, both also as intermediate code.
    const bool in_family = built / 10 == capability / 10 && built <= capability;
    const bool is_specific = rest.starts_with("a") || rest.starts_with("f");
    const bool runs = rest.starts_with("a") ? built == capability : in_family;
    const bool real = rest.find("-virtual") == std::string::npos,
               intermediate = intermediate_too && rest.find("-real") == std::string::npos;
    if ((real && runs) || (intermediate && (is_specific ? runs : built <= capability))) return true;
  }
  return false;
}

}  // namespace

std::string cuda_version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

bool runs_on(const std::string& architectures, int capability) { return has_code(architectures, capability, true); }
bool has_machine_code(const std::string& architectures, int capability) {
  return has_code(architectures, capability, false);
}

std::string why_unavailable(const CudaFindings& found, int index) {
  if (!found.count_error.empty() || found.device_count == 0) return why_no_device(found);
  if (index < 0 || index >= found.device_count) {
    return found.device_count == 1
               ? fmt::format("device {} does not exist: the driver reports one device, cuda:0{}", index,
                             visible_devices_note(found))
               : fmt::format("device {} does not exist: the driver reports {} devices, cuda:0 to cuda:{}{}", index,
                             found.device_count, found.device_count - 1, visible_devices_note(found));
  }
  if (!found.device_error.empty()) return fmt::format("device {} does not respond: {}", index, found.device_error);
  if (found.capability < min_capability)
    return fmt::format("{} is too old: it has compute capability {}, expected {} or later", found.device_name,
                       capability_text(found.capability), capability_text(min_capability));
  if (!runs_on(found.architectures, found.capability))
    return fmt::format("this build has no code for {}: it has compute capability {}, the build has code for {}",
                       found.device_name, capability_text(found.capability), found.architectures);
  if (!found.virtual_memory)
    return fmt::format("the NVIDIA driver of {} does not support virtual memory management, which tensors require",
                       found.device_name);
  if (!found.library_problem.empty()) return "the library " + found.library_problem;
  if (!found.context_error.empty())
    return fmt::format(
        "{} exists but cannot be used now: {}; another process may be using it exclusively or may have filled its "
        "memory",
        found.device_name, found.context_error);
  return "";
}

}  // namespace furlong
