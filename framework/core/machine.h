#pragma once
// What the machine offers to this process: processor, cores, memory, huge pages, GPUs, and the limits that a container
// (cgroup) sets. Everything is read from /proc and /sys below `root`, so that a test can show a machine of its own.
// What a kernel does not tell is left empty or zero; nothing here throws for a missing file.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace furlong {

struct CpuInformation {
  std::string model;               ///< as the kernel names it; empty when it does not
  std::set<std::string> features;  ///< the kernel's names: avx2, avx512f, avx512_bf16, amx_tile, asimd, ... (only what
                                   ///< the system enabled)
  int online_cores = 0;            ///< logical cores that are switched on
  int allowed_cores = 0;           ///< of these, how many the affinity mask lets this process use
  std::optional<double> quota_cores;  ///< CPU time per time that the cgroup grants, e.g. 1.5; empty without a limit

  bool has(const std::string& feature) const { return features.count(feature) > 0; }
  /// Threads that can run at once: the allowed cores, or the quota (rounded up) where that is less. At least 1.
  int usable_cores() const;
};

/// All in bytes.
struct MemoryInformation {
  uint64_t total = 0;                    ///< of the machine
  uint64_t available = 0;                ///< without swapping, the cgroup's limit taken into account
  std::optional<uint64_t> cgroup_limit;  ///< the tightest limit from this process's cgroup upwards; empty without one
  uint64_t usable() const { return cgroup_limit && *cgroup_limit < total ? *cgroup_limit : total; }
};

struct HugePageInformation {
  std::string enabled;  ///< always, madvise or never; empty where the kernel has no transparent huge pages
  std::string defrag;   ///< always, defer, defer+madvise, madvise or never
  uint64_t bytes = 0;   ///< size of one huge page
};

struct GpuInformation {
  std::string name;     ///< as the driver names it; the PCI address where no driver is loaded
  bool driver = false;  ///< whether a driver runs it
};

struct Machine {
  CpuInformation cpu;
  MemoryInformation memory;
  HugePageInformation huge_pages;
  std::vector<GpuInformation> gpus;  ///< NVIDIA only
  std::string kernel;                ///< release, e.g. 6.1.0-18-amd64
  bool container = false;            ///< whether the usual marks of a container are there
};

/// Reads everything above. The affinity mask is that of the calling process and is left out (all online cores) when
/// `root` is not "/".
Machine read_machine(const std::filesystem::path& root = "/");
/// The GPUs alone.
std::vector<GpuInformation> read_gpus(const std::filesystem::path& root = "/");

}  // namespace furlong
