#pragma once
#include <cstdint>

#include "communication/process_group.h"
#include "datasets/vocabulary.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Before anything large is allocated: throws UserError where a training step needs more memory than there is for this
/// process. Each of several on a host takes as much of the host's memory; a GPU is one process's own. All of the group
/// call it, and none of them goes on before all have looked. Returns whether checkpoints can be copied and written in
/// the background: checkpoint.background says so, and every process has memory for the copy beside the step. Where the
/// copy alone is too much, rank 0 warns.
bool check_memory(const Settings& settings, const Vocabulary& vocabulary, const Device& device,
                  const ProcessGroup& group);

/// What is needed of what there is, in bytes.
struct MemoryShare {
  std::int64_t step = 0;       ///< tensors of one step, on the device
  std::int64_t copy = 0;       ///< of a checkpoint, on the host
  std::int64_t on_device = 0;  ///< available; 0: not known
  std::int64_t on_host = 0;    ///< the same; where the device is the host, of the same memory
  bool is_one_memory = true;   ///< the device has the host's
  bool fits_step() const { return on_device == 0 || step <= on_device; }
  bool fits_copy() const { return on_host == 0 || copy + (is_one_memory ? step : 0) <= on_host; }
};

}  // namespace furlong
