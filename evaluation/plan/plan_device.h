#pragma once
// Devices of furlong plan: rates, memory and connections.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/core/dtype.h"

namespace furlong {

/// Hosts, and devices on each. Each rank drives one device.
struct PlanCluster {
  int hosts = 1, per_host = 1;
  int devices() const { return hosts * per_host; }
};
/// Parses "8" (one host) or "4x8" (hosts x devices per host). Throws UserError for other text.
PlanCluster plan_cluster(const std::string& text);

/// Kind of device, which determines memory and communication.
enum class PlanDeviceKind : std::uint8_t {
  unknown,  ///< given by numbers, without a name
  gpu,      ///< memory separate from the host's; NCCL
  cpu       ///< memory of the host; Gloo
};

/// Rates per second: operations (a multiply-add counts as two) and bytes. 0: unknown.
struct PlanDevice {
  std::string name = "custom";
  PlanDeviceKind kind = PlanDeviceKind::unknown;
  std::string source = "given with --device";  ///< source of the numbers
  double flops = 0;                            ///< peak of dense matrix products in the compute dtype
  double attention_flops = 0;                  ///< peak of matrix products inside attention
  double memory = 0;                           ///< bytes
  double reserve = 0;                          ///< part of it for driver, libraries and communication buffers
  double bandwidth = 0;                        ///< of memory, reads and writes together
  double link = 0;                             ///< to other devices of the host, in one direction
  double link_latency = 0;                     ///< seconds per message
  double network = 0;                          ///< to other hosts, per device, in one direction
  double network_latency = 0;
  double reached = 0.8;              ///< fraction of bandwidth, link and network that is reached
  double utilization = 0.35;         ///< fraction of the peak that matrix products of a step reach
  double overlap = 1;                ///< fraction of communication that does not slow backward down
  bool by_host = true;               ///< reduce inside hosts first (NCCL); false: in one ring through all ranks (Gloo)
  std::vector<std::string> assumed;  ///< keys whose numbers are neither measured nor published
};

/// Returns the names of devices with data sheets. cpu, this machine, is not one of them.
std::vector<std::string> plan_device_names();

/// Returns a device of plan_device_names(). `dtype` is the compute dtype; `tf32`: float32 products run in TF32. Throws
/// UserError for an unknown name and suggests the nearest.
PlanDevice plan_device(const std::string& name, DType dtype, bool tf32);

/// Sets numbers of `device` from KEY=NUMBER pairs separated by commas. Keys are the numeric members of PlanDevice.
/// flops without attention_flops sets both. Throws UserError for unknown keys and invalid numbers.
void set_plan_numbers(PlanDevice& device, const std::string& text);

/// Throws UserError that names the keys if a number is missing that a plan for this cluster needs.
void check_plan_device(const PlanDevice& device, const PlanCluster& cluster);

/// Returns each key with its number.
std::vector<std::pair<std::string, double>> plan_numbers(const PlanDevice& device);

/// Formats with a decimal prefix and three digits: "900 MB/s", "3.35 TB/s".
std::string with_prefix(double value, const char* unit);

}  // namespace furlong
