#pragma once
// Assigns GPUs to ranks, and checks that the ranks' devices fit together.
#include <string>
#include <vector>

#include "communication/process_group.h"
#include "framework/core/device.h"

namespace furlong {

/// Returns the GPU index for `device: auto` and `device: cuda` on a rank that sees `devices` GPUs: its local rank.
/// Returns 0 if it sees one GPU, because launchers show each rank its own through CUDA_VISIBLE_DEVICES. Throws
/// UserError if the host has more ranks than GPUs.
int device_index(const LaunchEnvironment& environment, const std::string& device, int devices);

/// Like device_from_name(), for one of several ranks.
Device device_of_process(const std::string& name, const LaunchEnvironment& environment);

/// A rank's device, as it is sent to all other ranks.
struct ProcessDevice {
  std::string host, device;  ///< "node07", "cuda:1"
  std::string identity;      ///< GpuDescription::identity; "" on a CPU
};

/// Throws UserError if some ranks have GPUs and others have none, or if two ranks have the same GPU.
void check_process_devices(const std::vector<ProcessDevice>& processes);

/// Checks the devices of all ranks of the group, and that parallel.backend supports them. All ranks call it.
void check_process_devices(const std::string& engine, const Device& device, const ProcessGroup& group);

}  // namespace furlong
