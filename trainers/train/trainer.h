#pragma once
#include <optional>

#include "trainers/checkpoint/checkpoint_origin.h"
#include "trainers/checkpoint/checkpoint_parts.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/carried_state.h"
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

/// What one optimizer step found, in all processes together.
struct StepReport {
  double loss =
      0;  ///< mean over the step's targets, nats, or what the teacher's loss is; not a number where it had none
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;              ///< read: next_token: targets that counted; otherwise all that were not padding
  std::int64_t targets = 0;             ///< tokens or labels that counted in the loss
  bool skipped = false;                 ///< an outlier: the optimizer did not move
  bool stops = false;                   ///< a signal asked some process to stop: all know it behind the same step
  ops::DenominatorReport denominators;  ///< of this step's forward passes; no rows where no map guards them
};

/// The state of a training run and its step. Everything that decides what comes next is in save() and load(): the rest
/// of the program can stop anywhere between two steps. Can be moved between steps: no part refers to another's place.
class Trainer {
 public:
  /// `data` and `group` have to outlive the trainer. compute: see make_model. group: the processes that train this
  /// model together, each a share of each batch's samples; null: this one alone. All of them call what is not const
  /// here in the same order.
  Trainer(const Settings& settings, const Dataset& data, const Device& device,
          std::optional<DType> compute = std::nullopt, const ProcessGroup* group = nullptr);

  /// Begins a new run from the weights of a checkpoint, moments at zero. Throws UserError where they do not fit.
  WeightsReport start_from(const CheckpointReader& checkpoint);

  /// stop_requested: this process was asked to stop; the report says so in all.
  StepReport step(bool stop_requested = false);
  /// Validation with the averaged weights where the optimizer keeps them; the first settings.trainer.validation_batches
  /// of the split. With a teacher: see Teacher::evaluate.
  Evaluation validate();

  /// Optimizer steps done (skipped outliers included).
  std::int64_t steps() const { return steps_; }
  const Dataset& data() const { return data_; }
  std::int64_t tokens() const { return tokens_; }
  /// Time that the steps of this object took.
  double seconds() const { return seconds_; }
  Model& model() { return model_; }
  const BatchSource& source() const { return input_.source(); }
  /// Of several processes; null in one.
  const GradientReducer* reducer() const { return parallel_.reducer(); }
  /// Whether the last step was replayed from a recording (trainer.cuda_graph).
  bool replayed() const { return graph_.replayed(); }

  /// Takes the loss of a validation of the present step into account; true when it is the best so far.
  bool note_validation(double loss) { return early_stopping_.note(steps_, loss); }
  const EarlyStopping& early_stopping() const { return early_stopping_; }

  /// In words what the next step begins from, weights by their checksum: "step 40, sample 320, weights
  /// 0123456789abcdef". The same in all processes that train together.
  std::string digest() const;
  /// Writes a checkpoint before it returns. `metrics`: the run's metrics.jsonl so far, which goes along so that a
  /// checkpoint alone tells how it came to be. Of several processes each writes its part of the parameters and moments,
  /// and rank 0 the checkpoint that names them.
  void save(const std::filesystem::path& path, const std::string& metrics = {}) const;
  /// What save() writes, for whoever writes it before the next step.
  CheckpointParts checkpoint_parts(const std::string& metrics) const;
  /// Continues from a checkpoint. Throws UserError where it belongs to another model, vocabulary or seed.
  void load(const CheckpointReader& checkpoint);

 private:
  /// Random directions and constants of the step to come.
  void redraw();
  void write_numbers(const StepReport& report, const std::optional<Turn>& turn, bool stop_requested);
  /// Whether the step's work on the device may be recorded and replayed.
  bool may_record() const;
  /// Forward and backward of each batch: gathers the gradients of all processes, and adds the loss to the step's
  /// numbers. checks: throws NonFiniteError at the first op that gives a value that is not finite.
  void gradients(const std::vector<Batch>& batches, bool checks);
  [[noreturn]] void name_the_culprit(const std::vector<Batch>& batches, double loss, double gradient_norm);
  void put_state(CheckpointSink& file, std::string_view metrics) const;
  void load_carried(const CheckpointReader& checkpoint, const Settings& before);

  const Dataset& data_;
  std::unique_ptr<Teacher> teacher_;  // null without one
  Model model_;
  DataParallel parallel_;
  Optimizer optimizer_;
  StepInput input_;
  std::vector<CarriedState> carried_;  // data.carry_state: of each batch that a step accumulates
  Tensor numbers_;                     // of the step (ops::StepNumber), on the device
  StepGraph graph_;
  ops::DenominatorReport denominators_;  // of the step
  bool counts_denominators_ = false;     // seen in a step; the first ones are never recorded
  OutlierFilter outliers_;
  EarlyStopping early_stopping_;
  std::int64_t steps_ = 0, tokens_ = 0;
  double seconds_ = 0;
  std::optional<CheckpointOrigin> origin_;  // of the weights, for whoever exports them again
};

/// The first key of `model` that a run cannot go on with another value of, in words: "model.norm was layernorm in the
/// checkpoint and is rmsnorm now". Nothing where there is none.
std::optional<std::string> model_difference(const Settings& checkpoint, const Settings& now);

/// Throws the UserError with which Trainer::load refuses a checkpoint of another model, objective, teacher's loss or
/// seed than the resolved settings'; reads no tensor.
void check_resumable(const CheckpointReader& checkpoint, const Settings& settings);

}  // namespace furlong
