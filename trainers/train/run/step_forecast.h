#pragma once
// Estimates the memory and traffic of a training step by running it on the shape-only device.
#include <cstdint>
#include <vector>

#include "datasets/vocabulary.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Estimated memory and traffic of one training step.
struct StepForecast {
  std::int64_t peak_bytes = 0;  ///< of tensors in one rank
  /// With context parallelism: bytes of each state that a rank sends within its row in one batch, in order. Backward
  /// repeats the forward exchanges if they are recomputed, and then adds its own.
  std::vector<std::int64_t> forward_states, backward_states;
};

/// Estimates the step of the rank with the largest share among `processes` ranks.
StepForecast forecast_step(const Settings& settings, const Vocabulary& vocabulary, int processes);

/// Estimates the peak bytes of tensors in one of `processes` ranks.
std::int64_t predicted_peak_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

/// Estimates the host bytes of a copy of rank 0's part of a checkpoint.
std::int64_t predicted_copy_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

}  // namespace furlong
