#pragma once
// What a step takes before there is one, found by running it on the shape-only device.
#include <cstdint>
#include <vector>

#include "datasets/vocabulary.h"
#include "trainers/settings/settings.h"

namespace furlong {

struct StepForecast {
  std::int64_t peak_bytes = 0;  ///< of tensors in one process
  /// Of sequences in segments: bytes of each state that the process tells the others of its row in one batch, in order;
  /// those of backward are again those of forward, where that is recomputed, and then its own.
  std::vector<std::int64_t> forward_states, backward_states;
};

/// Of the process with the largest share among `processes`.
StepForecast forecast_step(const Settings& settings, const Vocabulary& vocabulary, int processes);

/// Peak bytes of tensors that training with these settings takes in one process of `processes`.
std::int64_t predicted_peak_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

/// Bytes that a copy of what rank 0 writes to a checkpoint takes on the host.
std::int64_t predicted_copy_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

}  // namespace furlong
