#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainers/model/input_queue.h"
#include "trainers/model/objective.h"
#include "trainers/train/parallel/work_share.h"

namespace furlong {

/// The batches that training steps read: this process's share, and on a GPU copied there while the step before
/// computes. Its whole state is the number of samples drawn.
class StepInput {
 public:
  /// What one step reads, on the host.
  struct Step {
    std::vector<Batch> batches;                       ///< that the step accumulates
    std::vector<std::vector<std::int32_t>> compared;  ///< distillation: compared_tokens of each; empty elsewhere
  };

  /// vocabulary: the model's.
  StepInput(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, const Device& device);

  /// Reads the next step, which stays until the next call.
  const Step& next(const WorkShare& work);
  /// Puts it into the tensors on the device. These stay where they are from step to step while shapes do.
  void load();
  /// On a GPU: reads the step after it and begins to copy that.
  void prefetch(const WorkShare& work);

  const DeviceBatch& on_device(std::size_t batch) const { return inputs_[batch]; }
  /// int32 [rows, n]; undefined where nothing is compared.
  Tensor compared_on_device(std::size_t batch) const { return compared_.empty() ? Tensor{} : compared_[batch]; }
  /// Shapes of what was loaded, and what else a recorded step depends on.
  std::string shapes() const;

  const BatchSource& source() const { return *source_; }
  std::uint64_t samples_drawn() const { return samples_drawn_; }
  void continue_at(std::uint64_t samples_drawn) { samples_drawn_ = samples_drawn; }

 private:
  Step read(const WorkShare& work) const;
  std::vector<InputPart> parts_of(const Step& step);

  Settings settings_;
  Device device_;
  std::unique_ptr<BatchSource> source_;
  std::unique_ptr<InputQueue> queue_;  // of a GPU; null on the CPU
  std::uint64_t samples_drawn_ = 0;
  Step step_;
  std::vector<DeviceBatch> inputs_;  // of step_, or under way
  std::vector<Tensor> compared_;
  std::optional<Step> prefetched_;  // and from which sample on
  std::uint64_t prefetched_at_ = 0;
};

}  // namespace furlong
