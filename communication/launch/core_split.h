#pragma once
// Distribution of a host's cores among several processes.
#include <filesystem>
#include <string>
#include <vector>

namespace furlong {

/// Returns the logical cores that this process may run on. They are ordered by package, die and physical core, so that
/// hardware threads of one core are neighbors. The topology is read from /sys below `root`; cores without topology
/// information stay in numerical order.
std::vector<int> neighboring_cores(const std::filesystem::path& root = "/");

/// Orders the given cores in the same way.
std::vector<int> neighboring_cores(std::vector<int> cores, const std::filesystem::path& root);

/// Splits `cores`, in this order, into one block for each process. Block sizes differ by at most one; the first blocks
/// are larger. Returns an empty list if a block would have fewer cores than `threads`: the scheduler then does better
/// than a fixed binding.
std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int processes, int threads);

/// Returns cores in the notation of taskset, independent of their order: "0-3,8" for {0, 1, 2, 3, 8}.
std::string core_list(std::vector<int> cores);

}  // namespace furlong
