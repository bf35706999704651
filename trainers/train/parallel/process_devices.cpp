#include "trainers/train/parallel/process_devices.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "communication/nccl/nccl_communicator.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"

namespace furlong {
namespace {

/// The exchanged form of a ProcessDevice; longer texts are cut.
struct Record {
  std::array<char, 256> host{};
  std::array<char, 32> device{};
  std::array<char, 64> identity{};
};

template <std::size_t N>
void put(std::array<char, N>& target, const std::string& text) {
  std::memcpy(target.data(), text.data(), std::min(text.size(), N - 1));
}

std::vector<ProcessDevice> devices_of_all(const Device& device, const ProcessGroup& group) {
  Record own;
  put(own.host, group.environment().host);
  put(own.device, device.text());
  if (device.is_gpu()) put(own.identity, require_gpu_engine(device.type).describe(device.index).identity);
  const Tensor mine = Tensor::empty({static_cast<std::int64_t>(sizeof own)}, DType::uint8);
  const Tensor all = Tensor::empty({group.size() * static_cast<std::int64_t>(sizeof own)}, DType::uint8);
  std::memcpy(mine.address(), &own, sizeof own);
  group.communicator().all_gather(Stream{}, mine, all).wait();
  std::vector<ProcessDevice> processes;
  for (int rank = 0; rank < group.size(); ++rank) {
    Record record;
    std::memcpy(&record, static_cast<const char*>(all.address()) + static_cast<std::size_t>(rank) * sizeof record,
                sizeof record);
    processes.push_back({record.host.data(), record.device.data(), record.identity.data()});
  }
  return processes;
}

std::string text_of(const std::vector<ProcessDevice>& processes, std::size_t rank) {
  return fmt::format("rank {} on {} uses {}", rank, processes[rank].host, processes[rank].device);
}

}  // namespace

int device_index(const LaunchEnvironment& environment, const std::string& device, int devices) {
  if (devices <= 1) return 0;
  if (environment.local_rank < devices) return environment.local_rank;
  throw UserError(
      "device: {}: the launcher ({}) started {} ranks on {}, which has {} GPUs, and each rank needs its own; start {} "
      "there, or set device: cpu",
      device, environment.launcher, environment.local_world_size, environment.host, devices, devices);
}

Device device_of_process(const std::string& name, const LaunchEnvironment& environment) {
  GpuEngine* cuda = gpu_engine(DeviceType::cuda);
  if (name == "auto" && environment.local_rank > 0 && (cuda == nullptr || cuda->device_count() == 0))
    return Device{};  // the host's first rank logs the warning
  if ((name != "auto" && name != "cuda") || environment.world_size == 1 || cuda == nullptr || cuda->device_count() == 0)
    return device_from_name(name);
  const int index = device_index(environment, name, cuda->device_count());
  if (const std::string reason = cuda->unavailable(index); name == "auto" && !reason.empty()) {
    if (environment.local_rank == 0) log_warn("{}", idle_gpu_warning(read_gpus(), reason));
    return Device{};
  }
  return device_from_name(fmt::format("cuda:{}", index));
}

void check_process_devices(const std::vector<ProcessDevice>& processes) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const ProcessDevice& process = processes[rank];
    if (process.identity.empty() != processes[0].identity.empty())
      throw UserError(
          "device: {}, but {}; expected GPUs on all ranks or on none: set device: cuda to see what is missing, or "
          "device: cpu",
          text_of(processes, 0), text_of(processes, rank));
    if (process.identity.empty()) continue;
    const auto [owner, is_first] = owners.emplace(process.identity, rank);
    if (!is_first)
      throw UserError(
          "device: {} and {}, the same GPU ({}), but each rank needs its own; start as many ranks on a host as it has "
          "GPUs, with device: cuda",
          text_of(processes, owner->second), text_of(processes, rank), process.identity);
  }
}

void check_process_devices(const std::string& engine, const Device& device, const ProcessGroup& group) {
  check_process_devices(devices_of_all(device, group));
  if (engine == "gloo" && device.is_gpu())
    throw UserError(
        "parallel.backend: gloo works between CPUs, but these ranks use {}; set it to auto or nccl, or set device: cpu",
        device.text());
  if (engine == "nccl" && !device.is_gpu())
    throw UserError(
        "parallel.backend: nccl works between GPUs, but these ranks use {}{}; set it to auto or "
        "gloo, or set device: cuda",
        device.text(), gpu_engine(DeviceType::cuda) ? "" : " (this program was built without the CUDA toolkit)");
}

}  // namespace furlong
