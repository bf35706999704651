#include "communication/launch/core_split.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <tuple>

namespace furlong {
namespace {

std::vector<int> allowed_cores() {
  // The kernel refuses a mask smaller than its own, so larger sizes are tried.
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(size), [](cpu_set_t* set) { CPU_FREE(set); });
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    if (!mask || sched_getaffinity(0, bytes, mask.get()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < size; ++core) {
      if (CPU_ISSET_S(core, bytes, mask.get())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

}  // namespace

std::vector<int> neighboring_cores(const std::filesystem::path& root) {
  return neighboring_cores(allowed_cores(), root);
}

std::vector<int> neighboring_cores(std::vector<int> cores, const std::filesystem::path& root) {
  using Place = std::tuple<int, int, int, int>;  // package, die, core, logical core
  std::vector<Place> places;
  for (const int core : cores) {
    const auto read = [&](const char* what) {
      std::ifstream file(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/{}", core, what));
      int value = 0;
      return file >> value ? value : 0;
    };
    places.emplace_back(read("physical_package_id"), read("die_id"), read("core_id"), core);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < places.size(); ++i) cores[i] = std::get<3>(places[i]);
  return cores;
}

std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int processes, int threads) {
  const auto n = static_cast<std::size_t>(processes), available = cores.size();
  if (n == 0 || available / n < static_cast<std::size_t>(std::max(threads, 1))) return {};
  std::vector<std::vector<int>> blocks;
  auto begin = cores.begin();
  for (std::size_t i = 0; i < n; ++i) {
    const auto end = begin + static_cast<std::ptrdiff_t>(available / n + (i < available % n ? 1 : 0));
    blocks.emplace_back(begin, end);
    begin = end;
  }
  return blocks;
}

std::string core_list(std::vector<int> cores) {
  std::sort(cores.begin(), cores.end());
  std::vector<std::string> ranges;
  for (std::size_t first = 0, last = 0; first < cores.size(); first = last = last + 1) {
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    ranges.push_back(first == last ? fmt::format("{}", cores[first]) : fmt::format("{}-{}", cores[first], cores[last]));
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

}  // namespace furlong
