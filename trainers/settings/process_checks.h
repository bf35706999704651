#pragma once
// Checks of settings for training on several ranks, for all commands that train or plan a training.
#include <string>

#include "trainers/settings/settings.h"

namespace furlong {

/// The world size, and how messages describe it.
struct ProcessCount {
  int processes = 1;
  std::string found;  ///< what was found, such as "the launcher (srun) started 8 processes"
  std::string verb;   ///< verb of the advice to use fewer, such as "start"
};

/// Checks that these settings can be trained with `count.processes` ranks, a number above 1. Throws UserError that
/// names the key if they cannot.
void check_process_settings(const Settings& settings, const ProcessCount& count);

/// Throws UserError if parallel.context_parallel_size is above 1. For training in a single process.
void check_one_process(const Settings& settings);

/// Throws UserError if parallel.context_parallel_size is above 1. For training on GPUs. `instead` is the advice to a
/// user who needs it, such as "set device: cpu".
void refuse_segments_on_gpu(const Settings& settings, const std::string& instead);

}  // namespace furlong
