#pragma once
#include <deque>
#include <optional>

#include "communication/process_group.h"
#include "trainers/checkpoint/checkpoint_origin.h"
#include "trainers/checkpoint/checkpoint_parts.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/carried_state.h"
#include "trainers/model/objective.h"
#include "trainers/model/weights.h"
#include "trainers/train/distillation/teacher.h"
#include "trainers/train/optimizer/optimizer.h"
#include "trainers/train/parallel/gradient_reducer.h"
#include "trainers/train/parallel/work_share.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/step_graph.h"
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
/// of the program can stop anywhere between two steps.
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
  const BatchSource& source() const { return *source_; }
  /// Of several processes; null in one.
  const GradientReducer* reducer() const { return reducer_.get(); }
  /// Whether the last step was replayed from a recording (trainer.cuda_graph).
  bool replayed() const { return graph_.replayed(); }

  /// Takes a validation loss into account; true when it is the best so far. Early stopping counts from it.
  bool note_validation(double loss);
  std::int64_t validations_without_improvement() const { return without_improvement_; }
  std::optional<double> last_validation() const { return last_validation_; }
  /// The validation loss of the present step, when it was validated and is the best so far.
  std::optional<double> best_now() const {
    return validated_at_ == steps_ && without_improvement_ == 0 ? last_validation_ : std::nullopt;
  }

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
  void put_state(CheckpointSink& file, std::string_view metrics) const;
  void load_carried(const CheckpointReader& checkpoint, const Settings& before);
  /// Gathers the gradients of the batches in inputs_, and adds the loss to the step's numbers.
  void gradients(const std::vector<Batch>& batches, bool checks);
  /// What one step reads, of this process's samples.
  struct StepData {
    std::vector<Batch> batches;                       // that it accumulates
    std::vector<std::vector<std::int32_t>> compared;  // distillation: Lesson::compared of each; empty elsewhere
  };
  /// That of the next step.
  StepData read_data() const;
  /// The same for the step that begins; on a GPU it has been sent there.
  StepData take_data();
  /// On a GPU reads and sends what the step to come needs.
  void fetch_ahead();
  /// The numbers of the data, and their places in inputs_ and compared_.
  std::vector<InputPart> input_parts_of(const StepData& data);
  /// The same by the teacher's loss.
  void lessons(const std::vector<Batch>& batches, bool checks);
  /// How many tokens student and teacher are compared at, which goes to n_compared_.
  std::int64_t count_lessons(const StepData& data);
  void take_turn();
  /// Directions and constants of the coming step.
  void redraw();
  /// All that a step does on the device.
  void work(const std::vector<Batch>& batches);
  bool may_record() const;
  void write_numbers(const StepReport& report, bool stop_requested);
  void share_work();
  Optimizer make_optimizer();
  /// Adds up loss, stops and sum of squares of all processes.
  void combine_numbers(const Stream& stream);
  /// Of the gradients of all processes, into step_sum_of_squares.
  void sum_squares(const Stream& stream);
  /// Adds up over processes what each found of its own samples.
  void combine(StepReport& report) const;
  void combine(ops::DenominatorReport& report) const;
  /// What buffers add up: before a step rank 0 alone keeps what there is, behind it all have the sum.
  void split_sums();
  void combine_sums(const Stream& stream);
  double outlier_threshold() const;
  void note_norm(double gradient_norm);
  [[noreturn]] void name_the_culprit(const std::vector<Batch>& batches, double loss, double gradient_norm);

  const Dataset& data_;
  Device device_;
  WorkShare work_share_;
  const ProcessGroup* group_;             // null: this process alone
  Communicator* communicator_ = nullptr;  // of several processes, between their devices
  SampleShare share_;                     // of each batch
  std::unique_ptr<Teacher> teacher_;      // null without one
  Model model_;
  std::unique_ptr<ShardLayout> layout_;  // of several processes, as the next
  std::unique_ptr<GradientReducer> reducer_;
  Optimizer optimizer_;
  Tensor numbers_;                   // of the step (ops::StepNumber), on the device
  std::vector<DeviceBatch> inputs_;  // of the step, one for each batch that it accumulates
  std::vector<Tensor> compared_;     // distillation: Lesson::compared of each
  Tensor n_compared_;                // Lesson::n_compared
  StepGraph graph_;
  std::unique_ptr<InputQueue> input_queue_;  // of a GPU; null on the CPU
  ops::DenominatorReport denominators_;      // of the step
  bool counts_denominators_ = false;         // seen in a step; the first ones are never recorded
  std::unique_ptr<BatchSource> source_;
  std::vector<CarriedState> carried_;   // data.carry_state: of each batch that a step accumulates
  std::uint64_t samples_drawn_ = 0;     // all the state that the order of the data has
  std::optional<StepData> prefetched_;  // of the step to come, sent already, and from which sample on
  std::uint64_t prefetched_at_ = 0;
  std::int64_t steps_ = 0, tokens_ = 0;
  std::optional<CheckpointOrigin> origin_;  // of the weights, for whoever exports them again
  double seconds_ = 0;
  std::deque<double> recent_norms_;  // for outliers: of the last steps, skipped ones included
  double best_validation_ = HUGE_VAL;
  std::optional<double> last_validation_;
  std::int64_t without_improvement_ = 0, validated_at_ = -1;
};

/// The first key of `model` that a run cannot go on with another value of, in words: "model.norm was layernorm in the
/// checkpoint and is rmsnorm now". Nothing where there is none.
std::optional<std::string> model_difference(const Settings& checkpoint, const Settings& now);

/// Throws the UserError with which Trainer::load refuses a checkpoint of another model, objective, teacher's loss or
/// seed than the resolved settings'; reads no tensor.
void check_resumable(const CheckpointReader& checkpoint, const Settings& settings);

/// Peak bytes of tensors that training with these settings will take in one process of `processes`, found by running
/// one step on the shape-only device.
std::int64_t predicted_peak_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

/// Bytes that a copy of what rank 0 writes to a checkpoint takes on the host.
std::int64_t predicted_copy_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes = 1);

}  // namespace furlong
