#pragma once
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "datasets/dataset.h"
#include "trainers/model/model.h"
#include "trainers/model/objective.h"
#include "trainers/train/parallel/work_share.h"

namespace furlong {

/// Result of one pass over a split.
struct Evaluation {
  double loss = 0;  ///< mean over the targets, in nats; regression: mean squared error of the scaled numbers
  /// Fraction of targets that were the most probable token or class, or of sets of which all labels were predicted; NaN
  /// for regression.
  double accuracy = 0;
  std::int64_t targets = 0;  ///< predicted tokens or labels
  std::int64_t tokens = 0;   ///< tokens read: next_token: the targets; otherwise all tokens except padding
  double seconds = 0;
  // With a teacher (trainers/train/distillation/teacher.h); otherwise not measured.
  double divergence = std::numeric_limits<double>::quiet_NaN();  ///< from the teacher's predictions
  /// Relative error of each attention output that attention transfer trains, by layer.
  std::vector<std::pair<std::size_t, double>> layer_errors = {};
  /// Returns exp(loss).
  double perplexity() const;
  /// Returns loss / ln 2.
  double bits_per_token() const;
};

/// A loss of one batch that replaces loss_of. The batch is given on the host and on the device.
using BatchLoss = std::function<ops::CrossEntropyResult(layers::ForwardContext&, const Batch&, const DeviceBatch&,
                                                        const ops::CrossEntropyOptions&)>;

/// Called after each batch. `first` is the number of its first sample; `result` has row_losses.
using BatchObserver =
    std::function<void(std::uint64_t first, const Batch& batch, const ops::CrossEntropyResult& result)>;

/// How evaluate() reads a source.
struct EvaluationPass {
  std::int64_t batch_size = 1;       ///< samples in a batch
  std::int64_t max_batches = 0;      ///< 0: all
  bool stateful = false;             ///< recurrent states continue from batch to batch (data.stateful)
  BatchLoss loss = {};               ///< empty: loss_of
  const WorkShare* share = nullptr;  ///< of this rank; null: one process
  BatchObserver observe = {};        ///< needs one process
};

/// Evaluates the model's objective in one pass over a source, without dropout and without a tape. Without any target,
/// the result has 0 targets and a loss of NaN.
Evaluation evaluate(Model& model, const BatchSource& source, const EvaluationPass& pass);

/// Evaluates the model's objective in one pass over a split. next_token: windows of `sequence_length`, in which each
/// token except the split's first is a target once. Other objectives: some tokens masked, or labeled documents cut at
/// that length. `max_batches` limits the number of batches; 0 means all. Runs without dropout and without a tape.
/// `share`: this rank's share of each batch; all ranks get the combined result. Throws UserError if no token or label
/// is a target.
Evaluation evaluate(Model& model, const Dataset& data, Split split, std::int64_t sequence_length,
                    std::int64_t batch_size, std::int64_t max_batches = 0, const BatchLoss& loss = {},
                    const WorkShare& share = {}, const BatchObserver& observe = {});

/// Evaluates the model on the validation split as its training run does: with the run's lengths and batches, and the
/// first trainer.validation_batches of validation_source(). `share` and errors as above.
Evaluation validate(Model& model, const Dataset& data, const WorkShare& share);

/// Returns how validation reads the split: `data.sampler`, except that it reads windows in order whether training does
/// or not.
std::string validation_rows(const Settings& settings);

/// Returns the keys that differ and decide which targets a validation measures, so that losses do not compare. Not how
/// many samples of which length it reads.
std::vector<std::string> changed_targets(const Settings& before, const Settings& now);

/// Throws the UserError that evaluate() throws if the split, or its first `max_batches` batches (0: all), has no
/// target. Without a forward pass.
void check_targets(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                   std::int64_t max_batches);

/// Returns token ids as a tensor [batch, n] on `device`.
Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t batch, const Device& device);

}  // namespace furlong
