#include "framework/core/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>

namespace furlong {
namespace {

namespace fs = std::filesystem;

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

/// Returns the first line of a file, trimmed; empty if the file does not exist.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trimmed(line);
}

std::optional<uint64_t> to_integer(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// Calls visit(key, value) for each line `key SEPARATOR value` of a file.
template <class Visit>
void for_each_line(const fs::path& path, char separator, Visit visit) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto position = line.find(separator);
    if (position != std::string::npos) visit(trimmed(line.substr(0, position)), trimmed(line.substr(position + 1)));
  }
}

/// Returns the word in brackets of a kernel setting such as `always [madvise] never`.
std::string chosen(const std::string& line) {
  const auto begin = line.find('[');
  const auto end = line.find(']', begin == std::string::npos ? 0 : begin);
  return begin == std::string::npos || end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

/// Returns the number of cores in a list such as `0-3,8`.
int count_list(const std::string& list) {
  int count = 0;
  std::stringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    const auto first = to_integer(range);
    if (!first) continue;
    const auto dash = range.find('-');
    const auto last = dash == std::string::npos ? first : to_integer(range.substr(dash + 1));
    if (last && *last >= *first) count += static_cast<int>(*last - *first + 1);
  }
  return count;
}

/// Returns the folders of this process's cgroup for a controller, from its own up to the mounted root. In a container
/// the kernel may report the host's path, which does not exist here; then the mounted root holds the container's
/// limits.
std::vector<fs::path> cgroup_folders(const fs::path& root, const std::string& controller, bool& version_2) {
  std::string path_1, path_2 = "/";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") path_2 = line.substr(second + 1);
    if (controllers.find("," + controller + ",") != std::string::npos) path_1 = line.substr(second + 1);
  }
  version_2 = path_1.empty();
  const fs::path mount = version_2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (fs::path relative = fs::path(version_2 ? path_2 : path_1).relative_path(); !relative.empty();
       relative = relative.parent_path()) {
    if (fs::is_directory(mount / relative, ignored)) folders.push_back(mount / relative);
  }
  folders.push_back(mount);
  return folders;
}

std::optional<double> quota_of(const fs::path& folder, bool version_2) {
  if (version_2) {
    std::stringstream line(first_line(folder / "cpu.max"));
    double quota = 0, period = 0;
    if (line >> quota >> period && quota > 0 && period > 0)
      return quota / period;  // "max 100000" fails to parse: no quota
    return std::nullopt;
  }
  const auto quota =
      to_integer(first_line(folder / "cpu.cfs_quota_us"));  // -1 means no limit and does not parse as unsigned
  const auto period = to_integer(first_line(folder / "cpu.cfs_period_us"));
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

int count_allowed_cores(int online) {
  // The kernel refuses a mask smaller than its own, so try growing sizes.
  for (int cores = std::max(online, 1024); cores <= 1 << 20; cores *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(cores),
                                                                [](cpu_set_t* set) { CPU_FREE(set); });
    if (!mask) break;
    const size_t bytes = CPU_ALLOC_SIZE(cores);
    if (sched_getaffinity(0, bytes, mask.get()) == 0) return CPU_COUNT_S(bytes, mask.get());
  }
  return online;
}

CpuInformation read_cpu(const fs::path& root) {
  CpuInformation cpu;
  int listed = 0;
  for_each_line(root / "proc/cpuinfo", ':', [&](const std::string& key, const std::string& value) {
    if (key == "processor") ++listed;
    if ((key == "model name" || key == "Model") && cpu.model.empty()) cpu.model = value;
    if ((key == "flags" || key == "Features") && cpu.features.empty()) {
      std::stringstream words(value);
      for (std::string word; words >> word;) cpu.features.insert(word);
    }
  });
  cpu.online_cores = count_list(first_line(root / "sys/devices/system/cpu/online"));
  if (cpu.online_cores == 0) cpu.online_cores = std::max(listed, 1);
  cpu.allowed_cores = root == "/" ? count_allowed_cores(cpu.online_cores) : cpu.online_cores;
  bool version_2 = false;
  for (const fs::path& folder : cgroup_folders(root, "cpu", version_2)) {
    const auto quota = quota_of(folder, version_2);
    if (quota) cpu.quota_cores = std::min(*quota, cpu.quota_cores.value_or(*quota));
  }
  return cpu;
}

/// Returns the bytes that a cgroup uses and cannot drop immediately; the inactive file cache can be dropped.
uint64_t held_bytes(const fs::path& folder, bool version_2) {
  const auto used = to_integer(first_line(folder / (version_2 ? "memory.current" : "memory.usage_in_bytes")));
  uint64_t droppable = 0;
  for_each_line(folder / "memory.stat", ' ', [&](const std::string& key, const std::string& value) {
    if (key == (version_2 ? "inactive_file" : "total_inactive_file")) droppable = to_integer(value).value_or(0);
  });
  return used.value_or(0) - std::min(droppable, used.value_or(0));
}

MemoryInformation read_memory(const fs::path& root) {
  MemoryInformation memory;
  for_each_line(root / "proc/meminfo", ':', [&](const std::string& key, const std::string& value) {
    if (key == "MemTotal") memory.total = to_integer(value).value_or(0) * 1024;
    if (key == "MemAvailable") memory.available = to_integer(value).value_or(0) * 1024;
  });
  bool version_2 = false;
  for (const fs::path& folder : cgroup_folders(root, "memory", version_2)) {
    const auto limit = to_integer(first_line(folder / (version_2 ? "memory.max" : "memory.limit_in_bytes")));
    if (!limit || (memory.total > 0 && *limit >= memory.total))
      continue;  // version 1 reports "no limit" as a number larger than any memory
    memory.cgroup_limit = std::min(*limit, memory.cgroup_limit.value_or(*limit));
    const uint64_t held = held_bytes(folder, version_2);
    memory.available = std::min(memory.available, *limit - std::min(held, *limit));
  }
  return memory;
}

HugePageInformation read_huge_pages(const fs::path& root) {
  const fs::path folder = root / "sys/kernel/mm/transparent_hugepage";
  return {chosen(first_line(folder / "enabled")), chosen(first_line(folder / "defrag")),
          to_integer(first_line(folder / "hpage_pmd_size")).value_or(0)};
}

}  // namespace

int CpuInformation::usable_cores() const {
  const int by_quota = quota_cores ? static_cast<int>(std::ceil(*quota_cores - 1e-9)) : allowed_cores;
  return std::max(1, std::min(allowed_cores, by_quota));
}

std::vector<GpuInformation> read_gpus(const fs::path& root) {
  std::vector<GpuInformation> gpus;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", ignored)) {
    std::string name = "NVIDIA GPU";
    for_each_line(entry.path() / "information", ':', [&](const std::string& key, const std::string& value) {
      if (key == "Model") name = value;
    });
    gpus.push_back({name, true});
  }
  if (!gpus.empty()) return gpus;
  // A container may have the GPU's device files without the driver's /proc folder.
  for (const auto& entry : fs::directory_iterator(root / "dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.size() > 6 && name.compare(0, 6, "nvidia") == 0 &&
        std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; }))
      gpus.push_back({"/dev/" + name, true});
  }
  if (!gpus.empty()) return gpus;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", ignored)) {
    const std::string device_class = first_line(entry.path() / "class");  // 0x03....: a display or 3D controller
    if (first_line(entry.path() / "vendor") == "0x10de" && device_class.compare(0, 4, "0x03") == 0)
      gpus.push_back({"PCI " + entry.path().filename().string(), false});
  }
  return gpus;
}

Machine read_machine(const std::filesystem::path& root) {
  Machine machine;
  machine.cpu = read_cpu(root);
  machine.memory = read_memory(root);
  machine.huge_pages = read_huge_pages(root);
  machine.gpus = read_gpus(root);
  std::sort(machine.gpus.begin(), machine.gpus.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  machine.kernel = first_line(root / "proc/sys/kernel/osrelease");
  std::error_code ignored;
  machine.container = fs::exists(root / ".dockerenv", ignored) || fs::exists(root / "run/.containerenv", ignored);
  return machine;
}

}  // namespace furlong
