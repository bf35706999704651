#pragma once
// Loss and gradient of one batch, for comparison with the sums over its parts.
#include <cstdint>
#include <vector>

#include "framework/autodiff/tape.h"
#include "trainers/model/objective.h"

namespace furlong::testing {

struct LossAndGradient {
  double loss = 0;
  std::int64_t targets = 0;
  std::vector<double> gradient;
};

/// The sum over all targets of a batch, in float64.
inline LossAndGradient summed_loss(Model& model, const Batch& batch) {
  Tape tape{Stream{}};
  model.store->forget_gradients();
  layers::ForwardContext context{tape, true, 1, 0, 0};
  ops::CrossEntropyOptions options;
  options.normalizer = 1.0;
  const auto result = loss_of(model, context, on_device(batch, Device{}), options);
  tape.backward(result.loss);
  model.store->complete_gradients(tape.stream());
  return {result.loss.value().to_vector<double>()[0], batch.n_targets, model.store->gradients().to_vector<double>()};
}

}  // namespace furlong::testing
