#pragma once
// Learning from a teacher: a second model, beside the one being trained, that is run without a tape and never changed.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainers/model/objective.h"
#include "trainers/train/validation.h"

namespace furlong {

/// What a loss by the teacher needs of its step beside the batch.
struct Lesson {
  double share = 1;       ///< of the batch in its step's loss, where that is a mean over batches (transfer)
  Tensor loss;            ///< float64 scalar on the device: the batch's part of the step's loss is added to it
  Tensor n_targets;       ///< float64 [1] on the device: targets of the step
  Tensor compared;        ///< distillation: int32, one for each token: -1 where the two are not compared
  std::int64_t step = 0;  ///< optimizer steps before this one
};

/// The turn of one layer (teacher.layers: in_turn).
struct Turn {
  std::size_t layer = 0;
  std::int64_t first = 0, length = 0;  ///< optimizer steps
};

/// Layers of a student whose attention is not softmax like the teacher's, and so has something to learn from it.
std::vector<std::size_t> layers_to_transfer(const Settings& teacher, const Settings& student);

class Optimizer;

/// The second model, and its part in the student's steps.
class Teacher {
 public:
  /// The model in settings.teacher.checkpoint, in the student's compute dtype, without gradients. Where it has fewer
  /// learned positions than the student they are repeated (begin_from). `data` is the vocabulary of the data. On the
  /// shape-only device its weights are not read. Throws UserError where it does not fit a student of these settings.
  Teacher(const Settings& student, const Vocabulary& data, const Device& device, std::optional<DType> compute);

  /// Which of the student's parameters the loss does not train: all but those of the attentions that learn to transfer;
  /// for distillation none.
  Frozen frozen() const;
  /// Whether a parameter of the student belongs to the attention of `layer`.
  static bool in_attention(const Parameter& parameter, std::size_t layer);
  /// Transfer: the layers that learn it.
  const std::vector<std::size_t>& layers() const { return layers_; }
  /// Whose turn optimizer step `step` is; nothing where all layers learn in every step.
  std::optional<Turn> turn(std::int64_t step) const;

  /// Before the batches of a step: `compared` says where the two models are compared in each (distillation), and the
  /// optimizer then changes the layer alone whose turn it is.
  void begin_step(std::int64_t step, const std::vector<std::vector<std::int32_t>>& compared, Optimizer& optimizer);
  /// Whether the step has anything to compare.
  bool has_loss() const { return settings_.transfers() || compared_in_step_ > 0; }
  /// The loss of a batch and its gradients: added to lesson.loss and to the student's store. context.tape is empty
  /// before and after.
  void teach(Model& student, layers::ForwardContext& context, const DeviceBatch& batch, const Lesson& lesson);

  /// As furlong::evaluate. Transfer: `loss` is the mean over layers of the relative error (accuracy is not measured)
  /// and `layer_errors` has each, means over the batches. Distillation: loss and accuracy are the objective's, and
  /// `divergence` is T² KL(teacher ‖ student) in nats, a mean over where the two are compared.
  Evaluation evaluate(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                      std::int64_t batch_size, std::int64_t max_batches);

  Model& model() { return model_; }

 private:
  using EachLayer = std::function<void(std::size_t layer, const Variable& error)>;
  void transfer(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                std::optional<std::size_t> only, const Tensor* rows, const EachLayer& each);
  void distil(Model& student, layers::ForwardContext& context, const DeviceBatch& batch, const Lesson& lesson);
  Variable prediction_states(const Stream& stream, const DeviceBatch& batch);
  Evaluation evaluate_transfer(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                               std::int64_t batch_size, std::int64_t max_batches);
  Evaluation evaluate_distillation(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                                   std::int64_t batch_size, std::int64_t max_batches);

  TeacherSettings settings_;
  std::int64_t steps_ = 0;  // of the run
  Model model_;
  std::vector<std::size_t> layers_;
  Tensor own_weight_, teachers_weight_;  // of the two losses, scalars
  std::int64_t compared_in_step_ = 0;    // tokens
  Tensor n_compared_;                    // float64 [1] on the device: as many, at least 1
};

/// The teacher that the student's settings ask for; null: none.
std::unique_ptr<Teacher> make_teacher(const Settings& student, const Vocabulary& data, const Device& device,
                                      std::optional<DType> compute);
/// Teacher::frozen(); without a teacher nothing.
inline Frozen frozen_by(const std::unique_ptr<Teacher>& teacher) { return teacher ? teacher->frozen() : Frozen(); }

/// int32 [rows · n] for Lesson::compared: where settings.teacher compares the predictions of the two models in a batch.
std::vector<std::int32_t> compared_tokens(const Settings& settings, const Batch& batch);

}  // namespace furlong
