#pragma once
// The file of a sweep: which settings its runs combine.
#include <filesystem>
#include <string>
#include <vector>

#include "framework/config/table.h"

namespace furlong {

/// One key that a sweep sets.
struct SweepValue {
  std::string key;
  std::string text;     ///< the value as YAML
  config::Place place;  ///< of the value
};

struct SweepFile {
  std::filesystem::path base;    ///< the config that all runs share
  std::filesystem::path output;  ///< folder of the run directories
  /// The settings of each run: every combination of the values in grid, in the order of the file, the last key varying
  /// fastest; each of them with every entry of list.
  std::vector<std::vector<SweepValue>> runs;
};

inline constexpr std::size_t max_sweep_runs = 10000;

/// Reads a sweep: YAML with the keys base (relative to the file), output (default: runs/ and the file's name), grid (a
/// list of values for each config key) and list (a list of maps from config keys to values). Config keys are not
/// checked. Throws UserError, with file, line and column, for anything else, and for more than max_sweep_runs runs.
SweepFile read_sweep_file(const std::filesystem::path& file);

}  // namespace furlong
