#pragma once
// Distillation from a teacher: a second model that runs without a tape and never changes.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainers/model/objective.h"
#include "trainers/train/validation.h"

namespace furlong {

/// Inputs and outputs of one batch's teacher loss, besides the batch.
struct DistillationStep {
  double share = 1;       ///< attention transfer: this batch's part of the step, whose loss is a mean over batches
  Tensor loss;            ///< float64 scalar on the device: the batch's part of the step's loss is added to it
  Tensor n_targets;       ///< float64 [1] on the device: number of targets of the step
  Tensor compared;        ///< compared_tokens(); attention transfer without it compares all unmasked tokens
  std::int64_t step = 0;  ///< number of optimizer steps before this one
};

/// The training interval of one layer (teacher.layers: layer_wise).
struct LayerInterval {
  std::size_t layer = 0;
  std::int64_t first = 0, length = 0;  ///< in optimizer steps
};

/// Returns the student's layers that attention transfer trains: those whose attention is not the teacher's softmax
/// attention.
std::vector<std::size_t> attention_transfer_layers(const Settings& teacher, const Settings& student);

class Optimizer;

/// The teacher model, and its losses in the student's steps.
class Teacher {
 public:
  /// Loads the model in settings.teacher.checkpoint, in the student's compute dtype and without gradients. If it has
  /// fewer learned positions than the student, they are repeated (initialize_from). `data` is the vocabulary of the
  /// data. On the shape-only device no weights are read. Throws UserError if the teacher does not fit a student with
  /// these settings.
  Teacher(const Settings& student, const Vocabulary& data, const Device& device, std::optional<DType> compute);

  /// Selects the student's parameters that the teacher's loss does not train. Attention transfer: all except those of
  /// the attentions that it trains. Distillation: none.
  Frozen frozen() const;
  /// Returns whether a student parameter belongs to the attention of `layer`.
  static bool in_attention(const Parameter& parameter, std::size_t layer);
  /// Attention transfer: returns the layers that it trains.
  const std::vector<std::size_t>& layers() const { return layers_; }
  /// Returns the layer that optimizer step `step` trains, or nullopt if every step trains all layers.
  std::optional<LayerInterval> layer_interval(std::int64_t step) const;

  /// Call this before the batches of a step. `compared` holds, for each batch, the positions where distillation
  /// compares the two models. With layer-wise training, restricts the optimizer to the layer of this step.
  void begin_step(std::int64_t step, const std::vector<std::vector<std::int32_t>>& compared, Optimizer& optimizer);
  /// Returns whether the step has positions to compare.
  bool has_loss() const { return settings_.is_attention_transfer() || compared_in_step_ > 0; }
  /// Computes the loss of a batch and its gradients. Adds the loss to distillation.loss and the gradients to the
  /// student's store. context.tape is empty before and after.
  void accumulate_loss(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                       const DistillationStep& distillation);

  /// Evaluates the student like furlong::evaluate. Attention transfer: `loss` is the mean over layers of the relative
  /// error, and `layer_errors` holds each layer's error, both means over batches; accuracy is not measured.
  /// Distillation: loss and accuracy are the objective's, and `divergence` is T² KL(teacher ‖ student) in nats, a mean
  /// over the compared positions.
  Evaluation evaluate(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                      std::int64_t batch_size, std::int64_t max_batches);

  /// Returns the teacher's model.
  Model& model() { return model_; }

 private:
  using EachLayer = std::function<void(std::size_t layer, const Variable& error)>;
  void transfer(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                std::optional<std::size_t> only, const Tensor* rows, const EachLayer& each);
  void distil(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
              const DistillationStep& distillation);
  Variable prediction_states(const Stream& stream, const DeviceBatch& batch);
  Evaluation evaluate_transfer(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                               std::int64_t batch_size, std::int64_t max_batches);
  Evaluation evaluate_distillation(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                                   std::int64_t batch_size, std::int64_t max_batches);

  TeacherSettings settings_;
  std::int64_t steps_ = 0;  // of the run
  Model model_;
  std::vector<std::size_t> layers_;
  Tensor own_weight_, teachers_weight_;  // weights of the objective's and of the teacher's loss, scalars
  std::int64_t compared_in_step_ = 0;    // in tokens
  Tensor n_compared_;                    // float64 [1] on the device: max(compared_in_step_, 1)
};

/// Makes the teacher that the student's settings name; null if they name none.
std::unique_ptr<Teacher> make_teacher(const Settings& student, const Vocabulary& data, const Device& device,
                                      std::optional<DType> compute);
/// Returns Teacher::frozen(), or an empty function without a teacher.
inline Frozen frozen_by(const std::unique_ptr<Teacher>& teacher) { return teacher ? teacher->frozen() : Frozen(); }

/// Returns the tokens of a batch where settings.teacher compares the two models: int32 [rows · n] for
/// DistillationStep::compared. For distillation -1 where predictions are not compared; for attention transfer 1 for
/// tokens and 0 for padding.
std::vector<std::int32_t> compared_tokens(const Settings& settings, const Batch& batch);

}  // namespace furlong
