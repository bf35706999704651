#pragma once
// What training in several processes cannot do, for all commands that train or plan it.
#include <string>

#include "trainers/settings/settings.h"

namespace furlong {

/// How many processes train together, and how messages speak of it.
struct ProcessCount {
  int processes = 1;
  std::string found;  ///< "the launcher (srun) started 8 processes"
  std::string verb;   ///< what a user does who wants fewer: "start"
};

/// Throws UserError where settings cannot be trained in so many processes, naming the key. `processes` above 1: what
/// one process can do needs no check.
void check_process_settings(const Settings& settings, const ProcessCount& count);

/// parallel.sequence_processes where there is one process alone.
void check_one_process(const Settings& settings);

/// parallel.sequence_processes on GPUs. `instead`: what a user does who wants segments, "set device: cpu".
void refuse_segments_on_gpu(const Settings& settings, const std::string& instead);

}  // namespace furlong
