#pragma once
// Which GPU each of several processes takes, and whether what they have taken goes together.
#include <string>
#include <vector>

#include "communication/process_group.h"
#include "framework/core/device.h"

namespace furlong {

/// What `device: auto` and `device: cuda` mean in one of several processes that sees `devices` GPUs: the number of its
/// place among those of its host; 0 where it sees one alone, since launchers show each process its own by
/// CUDA_VISIBLE_DEVICES. Throws UserError where its host has more processes than that.
int device_index(const LaunchEnvironment& environment, const std::string& device, int devices);

/// device_from_name() for one of several processes.
Device device_of_process(const std::string& name, const LaunchEnvironment& environment);

/// One process's device, as all others learn of it.
struct ProcessDevice {
  std::string host, device;  ///< "node07", "cuda:1"
  std::string identity;      ///< GpuDescription::identity; "" on a CPU
};

/// Throws UserError where some have GPUs and others none, or two of them the same GPU.
void check_process_devices(const std::vector<ProcessDevice>& processes);

/// The same of all processes of the group, which all call it; and that parallel.engine works between such devices.
void check_process_devices(const std::string& engine, const Device& device, const ProcessGroup& group);

}  // namespace furlong
