#pragma once
#include <optional>

#include "trainers/checkpoint/checkpoint_origin.h"
#include "trainers/checkpoint/checkpoint_parts.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/recurrent_state.h"
#include "trainers/model/weights.h"
#include "trainers/train/distillation/teacher.h"
#include "trainers/train/early_stopping.h"
#include "trainers/train/optimizer/optimizer.h"
#include "trainers/train/optimizer/outlier_filter.h"
#include "trainers/train/parallel/data_parallel.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/step_graph.h"
#include "trainers/train/step_input.h"
#include "trainers/train/validation.h"

namespace furlong {

/// Results of one optimizer step, over all ranks.
struct StepReport {
  /// Mean over the step's targets, in nats; with a teacher, the loss of Teacher (teacher.loss). NaN if the step has
  /// no targets.
  double loss = 0;
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;   ///< tokens read: next_token: counted targets; otherwise all tokens except padding
  std::int64_t targets = 0;  ///< tokens or labels that count in the loss
  bool skipped = false;      ///< an outlier: the optimizer did not update
  bool stops = false;        ///< a rank received a signal to stop: all ranks learn it after the same step
  ops::DenominatorReport denominators;  ///< of this step's forward passes; no rows if no feature map guards them
};

/// The state of a training run, and its step. save() and load() cover all state that determines later steps, so the
/// program can stop between any two steps. Movable between steps: no part refers to another part's address.
class Trainer {
 public:
  /// `data` and `group` must outlive the trainer. `compute`: data type of weights and activations in forward and
  /// backward, instead of model.dtype (float64 in tests). `group`: the ranks that train this model together, each on a
  /// share of each batch's samples; null for one process. All ranks call the non-const functions and save() in the same
  /// order. `draws`: draws initial weights; without, they are zero until start_from() or load(), one of which must
  /// follow. Throws ContractError for a teacher or data.stateful with several ranks.
  Trainer(const Settings& settings, const Dataset& data, const Device& device,
          std::optional<DType> compute = std::nullopt, const ProcessGroup* group = nullptr, bool draws = true);

  /// Starts a new run from a checkpoint's weights, with zero optimizer moments. Throws UserError if they are of another
  /// model (check_same_model).
  WeightsReport start_from(const CheckpointReader& checkpoint);
  /// Continues with the samples after those that the checkpoint's run has drawn. Does nothing for an imported model.
  void continue_samples_of(const CheckpointReader& checkpoint);

  /// Takes one optimizer step and blocks until its results are known. `stop_requested`: this rank was asked to stop;
  /// the report has it on all ranks. Throws NonFiniteError, naming the first op with a result that is not finite, if
  /// the loss or the gradient norm is NaN or infinite; MachineError if the device or another rank fails.
  StepReport step(bool stop_requested = false);
  /// Validates with the EMA if the optimizer has one, on the first settings.trainer.validation_batches batches of the
  /// split. With a teacher: see Teacher::evaluate.
  Evaluation validate();

  /// Number of optimizer steps taken over all parts of the run, skipped outliers included.
  std::int64_t steps() const { return steps_; }
  const Dataset& data() const { return data_; }
  /// Number of training tokens read over all parts of the run, by all ranks (StepReport::tokens).
  std::int64_t tokens() const { return tokens_; }
  /// Seconds that the steps of this object took.
  double seconds() const { return seconds_; }
  Model& model() { return model_; }
  /// Returns the source of training samples.
  const BatchSource& source() const { return input_.source(); }
  /// Null for one process.
  const GradientReducer* reducer() const { return parallel_.reducer(); }
  /// Returns whether the last step was replayed from a recording (trainer.cuda_graph).
  bool replayed() const { return graph_.replayed(); }

  /// Records the validation loss of the current step. Returns whether it is the best so far.
  bool note_validation(double loss) { return early_stopping_.note(steps_, loss); }
  const EarlyStopping& early_stopping() const { return early_stopping_; }
  /// See EarlyStopping::forget_best.
  void forget_best_validation() { early_stopping_.forget_best(); }
  /// See EarlyStopping::start_anew.
  void start_validation_anew() { early_stopping_.start_anew(); }

  /// Returns a description of the current state, with a checksum of the weights: "step 40, sample 320, weights
  /// 0123456789abcdef". It is equal on all ranks that train together.
  std::string digest() const;
  /// Writes a checkpoint synchronously. `metrics`: the content of the run's metrics.jsonl, which the checkpoint
  /// includes. With several ranks each rank writes its shard of parameters and moments, and rank 0 writes the
  /// checkpoint that names the shards. Throws UserError if the path is invalid or if the shard
  /// of another rank does not become visible, and MachineError if the system fails. With one process, an existing file
  /// then stays unchanged.
  void save(const std::filesystem::path& path, const std::string& metrics = {}) const;
  /// Returns what save() writes. The parts must be written or copied before the next step.
  CheckpointParts checkpoint_parts(const std::string& metrics) const;
  /// Continues from a checkpoint. Throws UserError if it belongs to another model, vocabulary or seed.
  void load(const CheckpointReader& checkpoint);

 private:
  /// Draws the random projections and constants of the next step.
  void redraw();
  void write_numbers(const StepReport& report, const std::optional<LayerInterval>& interval, bool stop_requested);
  /// Returns whether the step's work on the device may be recorded and replayed.
  bool may_record() const;
  /// Runs forward and backward of each batch, reduces the gradients over all ranks, and adds the loss to the step's
  /// numbers. With `checks`, throws NonFiniteError at the first op with a result that is not finite.
  void gradients(const std::vector<Batch>& batches, bool checks);
  [[noreturn]] void throw_non_finite(const std::vector<Batch>& batches, double loss, double gradient_norm);
  void put_state(CheckpointSink& file, std::string_view metrics) const;
  void load_recurrent_state(const CheckpointReader& checkpoint, bool starts_empty);

  const Dataset& data_;
  mutable std::string data_fingerprint_;  // from the first checkpoint on
  std::unique_ptr<Teacher> teacher_;      // null without a teacher
  Model model_;
  DataParallel parallel_;
  Optimizer optimizer_;
  StepInput input_;
  std::vector<RecurrentState> recurrent_states_;  // data.stateful: one per accumulated batch
  Tensor numbers_;                                // of the step (ops::StepNumber), on the device
  StepGraph graph_;
  ops::DenominatorReport denominators_;  // of the step
  bool counts_denominators_ = false;     // set by the first steps, which are never recorded
  OutlierFilter outliers_;
  EarlyStopping early_stopping_;
  std::int64_t steps_ = 0, tokens_ = 0;
  double seconds_ = 0;
  std::optional<CheckpointOrigin> origin_;  // of the weights, for a later export
};

/// Describes the first key of `model` that a resumed run must not change: "model.norm was layernorm in the checkpoint
/// and is rmsnorm now". Returns nullopt if no key differs.
std::optional<std::string> model_difference(const Settings& checkpoint, const Settings& now);

/// Describes the keys of some sections that differ, except keys that do not affect training steps: "data.batch_size (4
/// then, 8 now)". Not paths of data, which data_fingerprint compares, nor a schedule that only follows
/// trainer.max_steps.
std::vector<std::string> changed_since(const Settings& before, const Settings& now,
                                       const std::vector<std::string>& sections);

/// Throws the UserError that Trainer::load throws for a checkpoint with another model, objective, teacher loss or seed
/// than the resolved settings. Reads no tensor.
void check_resumable(const CheckpointReader& checkpoint, const Settings& settings);

}  // namespace furlong
