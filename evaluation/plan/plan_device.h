#pragma once
// What furlong plan knows of a device and of what connects it with others.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/core/dtype.h"

namespace furlong {

/// Hosts, and processes on each: one process drives one device.
struct PlanCluster {
  int hosts = 1, per_host = 1;
  int devices() const { return hosts * per_host; }
};
/// "8" (one host) or "4x8" (hosts x devices of each). Throws UserError.
PlanCluster plan_cluster(const std::string& text);

/// Whose memory and connections these are.
enum class PlanDeviceKind : std::uint8_t {
  unknown,  ///< numbers of one's own, without a name
  gpu,      ///< beside a host's memory; NCCL
  cpu       ///< with the host's memory; Gloo
};

/// Rates in one second: operations (a multiply-add counts as two) and bytes. 0: not known.
struct PlanDevice {
  std::string name = "custom";
  PlanDeviceKind kind = PlanDeviceKind::unknown;
  std::string source = "given with --device";  ///< where the numbers come from
  double flops = 0;                            ///< peak of dense products, in the dtype that the model computes in
  double attention_flops = 0;                  ///< the same for the products inside attention
  double memory = 0;                           ///< bytes
  double reserve = 0;       ///< bytes of it that tensors do not get: driver, libraries, buffers of the communication
  double bandwidth = 0;     ///< of memory, reading and writing together
  double link = 0;          ///< to other devices of the host, in one direction
  double link_latency = 0;  ///< seconds, of one message
  double network = 0;       ///< to other hosts, this device's share of it, in one direction
  double network_latency = 0;
  double reached = 0.8;       ///< share of bandwidth, link and network that streams get
  double utilisation = 0.35;  ///< share of the peak that the products of a step get, as they are counted
  double overlap = 1;         ///< share of its time for which communication leaves backward alone
  bool by_host = true;  ///< sums are formed inside hosts first (NCCL), or in one ring through all processes (Gloo)
  std::vector<std::string> assumed;  ///< keys whose numbers nobody has measured or published for this device
};

/// Devices with numbers of their own, by name: cpu, the machine that this runs on, is not one of them.
std::vector<std::string> plan_device_names();

/// One of plan_device_names(). dtype: what the model computes in; tf32: products of float32 in TF32. Throws UserError,
/// naming the nearest.
PlanDevice plan_device(const std::string& name, DType dtype, bool tf32);

/// `text` is KEY=NUMBER between commas; the numbers go into `device`. Keys are the members of PlanDevice that hold
/// numbers; flops without attention_flops sets both. Throws UserError.
void set_plan_numbers(PlanDevice& device, const std::string& text);

/// Throws UserError, naming the keys, where a number is missing that a plan for this cluster needs.
void check_plan_device(const PlanDevice& device, const PlanCluster& cluster);

/// Each key with its number, in order.
std::vector<std::pair<std::string, double>> plan_numbers(const PlanDevice& device);

/// "900 MB/s", "3.35 TB/s": decimal prefixes, three digits.
std::string with_prefix(double value, const char* unit);

}  // namespace furlong
