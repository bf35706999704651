#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainers/model/input_queue.h"
#include "trainers/model/objective.h"
#include "trainers/train/parallel/work_share.h"

namespace furlong {

/// Provides the input of training steps: this rank's share of each batch. On a GPU it is copied while the previous step
/// computes. Its whole state is the number of samples drawn.
class StepInput {
 public:
  /// Input of one step, on the host.
  struct Step {
    std::vector<Batch> batches;                       ///< one per accumulated batch
    std::vector<std::vector<std::int32_t>> compared;  ///< compared_tokens of each batch, if the loss needs them
  };

  /// `vocabulary` is the model's.
  StepInput(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, const Device& device);

  /// Reads the input of the next step. The result is valid until the next call.
  const Step& next(const WorkShare& work);
  /// Copies the result of next() to the device. The tensors keep their addresses from step to step while their shapes
  /// stay the same. On a GPU the host does not wait for the copy.
  void load();
  /// On a GPU, reads the input of the following step and starts to copy it, while the present step computes. Does
  /// nothing on a CPU.
  void prefetch(const WorkShare& work);

  /// Returns the loaded tensors of one accumulated batch. Valid until the next load(), which may overwrite them.
  const DeviceBatch& on_device(std::size_t batch) const { return inputs_[batch]; }
  /// compared_tokens() of a batch, int32 [rows, n]; undefined if the loss does not need them.
  Tensor compared_on_device(std::size_t batch) const { return compared_.empty() ? Tensor{} : compared_[batch]; }
  /// Returns the shapes of the loaded input and everything else that a recorded step depends on.
  std::string shapes() const;

  const BatchSource& source() const { return *source_; }
  /// Number of training samples read so far, by all ranks together: the index of the next step's first sample.
  std::uint64_t samples_drawn() const { return samples_drawn_; }
  /// Sets samples_drawn(), after a resume.
  void continue_at(std::uint64_t samples_drawn) { samples_drawn_ = samples_drawn; }

 private:
  Step read(const WorkShare& work) const;
  std::vector<InputPart> parts_of(const Step& step);

  Settings settings_;
  Device device_;
  std::unique_ptr<BatchSource> source_;
  std::unique_ptr<InputQueue> queue_;  // null on the CPU
  std::uint64_t samples_drawn_ = 0;
  Step step_;
  std::vector<DeviceBatch> inputs_;  // of step_, or being copied
  std::vector<Tensor> compared_;
  std::optional<Step> prefetched_;  // with its first sample, prefetched_at_
  std::uint64_t prefetched_at_ = 0;
};

}  // namespace furlong
