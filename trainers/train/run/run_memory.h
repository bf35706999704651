#pragma once
#include <cstdint>

#include "communication/process_group.h"
#include "datasets/vocabulary.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Checks that a training step fits in memory, before anything large is allocated. The ranks of a host share its
/// memory; a GPU belongs to one rank. All ranks of the group call it, and it returns only after all have checked.
/// Throws UserError if the step does not fit.
///
/// Returns whether checkpoints can be written asynchronously: checkpoint.async is set, and on every rank the copy fits
/// in addition to the step. If the copy does not fit, rank 0 warns.
bool check_memory(const Settings& settings, const Vocabulary& vocabulary, const Device& device,
                  const ProcessGroup& group);

/// Returns the bytes that earlier work of this process has released, such as a run before this one. The device's arena
/// keeps them for later tensors, so the system counts them as used.
std::int64_t reusable_bytes(const Device& device);

/// Required and available memory in bytes.
struct MemoryShare {
  std::int64_t step = 0;       ///< tensors of one step, on the device
  std::int64_t copy = 0;       ///< copy of a checkpoint, on the host
  std::int64_t on_device = 0;  ///< available on the device; 0: unknown
  std::int64_t on_host = 0;  ///< available on the host, likewise; on_device is the same memory if the device is the CPU
  bool is_one_memory = true;  ///< the device is the CPU
  bool fits_step() const { return on_device == 0 || step <= on_device; }
  bool fits_copy() const { return on_host == 0 || copy + (is_one_memory ? step : 0) <= on_host; }
};

}  // namespace furlong
