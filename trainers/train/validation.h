#pragma once
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "datasets/dataset.h"
#include "trainers/model/model.h"
#include "trainers/model/objective.h"
#include "trainers/train/parallel/work_share.h"

namespace furlong {

struct Evaluation {
  double loss = 0;           ///< mean over the targets, nats
  double accuracy = 0;       ///< share of targets that were the most probable token or class
  std::int64_t targets = 0;  ///< tokens or labels that were predicted
  std::int64_t tokens = 0;   ///< read: next_token: the targets; otherwise all that were not padding
  double seconds = 0;
  // Beside a teacher, as settings.teacher says (trainers/train/distillation/teacher.h); elsewhere not measured.
  double divergence = std::numeric_limits<double>::quiet_NaN();  ///< from its predictions
  std::vector<std::pair<std::size_t, double>> layer_errors =
      {};  ///< of the output of each attention that becomes like the teacher's
  double perplexity() const;
  double bits_per_token() const;
};

/// The loss of one batch, where it is not loss_of: the batch, and itself on the device.
using BatchLoss = std::function<ops::CrossEntropyResult(layers::ForwardContext&, const Batch&, const DeviceBatch&,
                                                        const ops::CrossEntropyOptions&)>;

/// One pass over a split with the model's objective: in windows of `sequence_length`, each token but the split's first
/// a target once (next_token) or some of them masked, or labelled documents cut at that length; the first `max_batches`
/// batches when that is not 0. No dropout, nothing recorded. share: what this process does of each batch; all of them
/// get what they found together. Throws UserError where none of it is a target.
Evaluation evaluate(Model& model, const Dataset& data, Split split, std::int64_t sequence_length,
                    std::int64_t batch_size, std::int64_t max_batches = 0, const BatchLoss& loss = {},
                    const WorkShare& share = {});

/// Throws the UserError that evaluate would end with where it meets no target, without a forward pass.
void check_targets(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                   std::int64_t max_batches);

/// A batch of token ids as a tensor [batch, n] on `device`.
Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t batch, const Device& device);

}  // namespace furlong
