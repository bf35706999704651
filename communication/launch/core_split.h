#pragma once
// Which cores each of several processes on one host computes on.
#include <filesystem>
#include <string>
#include <vector>

namespace furlong {

/// The logical cores that this process may run on, ordered so that threads of one core, and then cores of one package
/// and die, are neighbours. The topology is read from /sys below `root`; cores it does not tell of keep the order of
/// their numbers.
std::vector<int> neighbouring_cores(const std::filesystem::path& root = "/");

/// As above, for cores that the caller names.
std::vector<int> neighbouring_cores(std::vector<int> cores, const std::filesystem::path& root);

/// Hands `cores`, in this order, to `processes` in blocks whose sizes differ by at most one (the first ones get more).
/// Empty where the threads of all do not fit: then the scheduler does better than a fixed place.
std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int processes, int threads);

/// "0-3,8" for {0, 1, 2, 3, 8}, in any order, as taskset writes it.
std::string core_list(std::vector<int> cores);

}  // namespace furlong
