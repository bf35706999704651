#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/random.h"

namespace furlong::layers {

/// What goes with a batch through a model.
struct ForwardContext {
  Tape& tape;
  bool training = false;   ///< dropout is on
  std::uint64_t seed = 0;  ///< the run's seed, and
  std::uint32_t step = 0;  ///< the optimizer step: with a layer's name they key its random numbers
  std::uint64_t first_sample =
      0;  ///< global number of the batch's first sequence within the step: random numbers do not depend on how it is split

  const Stream& stream() const { return tape.stream(); }
};

}  // namespace furlong::layers
