#pragma once
// The machine as this process can use it: CPU, cores, memory, huge pages, GPUs and the limits of a container (cgroup).
// Everything is read from /proc and /sys below `root`, so that tests can provide a fake machine. Values that the kernel
// does not report stay empty or zero; missing files never throw.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace furlong {

struct CpuInformation {
  std::string model;  ///< the kernel's name; empty if unknown
  /// The kernel's names (avx2, avx512f, avx512_bf16, amx_tile, asimd, …) of the features that the system has enabled.
  std::set<std::string> features;
  int online_cores = 0;               ///< logical cores that are online
  int allowed_cores = 0;              ///< online cores in this process's affinity mask
  std::optional<double> quota_cores;  ///< CPU time per wall time granted by the cgroup, e.g. 1.5; empty if unlimited

  bool has(const std::string& feature) const { return features.count(feature) > 0; }
  /// Returns the number of threads that can run at once: the allowed cores, or the quota (rounded up) if it is smaller.
  /// At least 1.
  int usable_cores() const;
};

/// All sizes in bytes.
struct MemoryInformation {
  uint64_t total = 0;      ///< of the whole machine
  uint64_t available = 0;  ///< without swapping, within the cgroup's limit
  std::optional<uint64_t>
      cgroup_limit;  ///< tightest limit of this process's cgroup and its ancestors; empty if unlimited
  uint64_t usable() const { return cgroup_limit && *cgroup_limit < total ? *cgroup_limit : total; }
};

struct HugePageInformation {
  std::string enabled;  ///< always, madvise or never; empty if the kernel has no transparent huge pages
  std::string defrag;   ///< always, defer, defer+madvise, madvise or never
  uint64_t bytes = 0;   ///< size of one huge page
};

struct GpuInformation {
  std::string name;     ///< the driver's name; the PCI address if no driver is loaded
  bool driver = false;  ///< whether a driver is bound to it
};

struct Machine {
  CpuInformation cpu;
  MemoryInformation memory;
  HugePageInformation huge_pages;
  std::vector<GpuInformation> gpus;  ///< NVIDIA only
  std::string kernel;                ///< kernel release, e.g. 6.1.0-18-amd64
  bool container = false;            ///< whether this process appears to run in a container
};

/// Reads the whole machine. The affinity mask is the calling process's; if `root` is not "/", all online cores count as
/// allowed.
Machine read_machine(const std::filesystem::path& root = "/");
/// Reads only the GPUs.
std::vector<GpuInformation> read_gpus(const std::filesystem::path& root = "/");

}  // namespace furlong
