#pragma once
#include <cstdint>
#include <memory>

#include "communication/process_group.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "trainers/checkpoint/shard_layout.h"
#include "trainers/train/optimizer/optimizer.h"
#include "trainers/train/parallel/gradient_reducer.h"
#include "trainers/train/parallel/work_share.h"

namespace furlong {

/// What the processes that train one model together exchange in a step; with one process alone, nothing. All of them
/// call what is not const here in the same order. Can be moved: what refers to its parts refers to memory that stays.
class DataParallel {
 public:
  /// group: null, or the processes; it outlives this, and so does the store.
  DataParallel(const Settings& settings, ParameterStore& store, const Device& device, const ProcessGroup* group);

  /// Null: this process alone.
  const ProcessGroup* group() const { return work_.group(); }
  bool is_first() const { return !group() || group()->is_first(); }
  /// What of each batch is this process's.
  const WorkShare& work() const { return work_; }
  /// Null: this process alone.
  const GradientReducer* reducer() const { return reducer_.get(); }
  /// What this process writes of the store's trained parameters to a checkpoint. Of several processes.
  std::vector<OwnedRange> owned_ranges() const { return layout_->ranges(group()->rank()); }
  /// Over the store: all of it, or with parallel.shard_optimizer this process's ranges.
  Optimizer make_optimizer(const Settings& settings) const;

  /// Before a step: of buffers that add up, the first process alone keeps what there is.
  void split_sums() const;
  /// Of the step's gradients: the backward to come, on this tape, is the last that adds to them; and after it, and
  /// after ParameterStore::complete_gradients(), they are those of all processes.
  void begin_reduction(const Tape& tape);
  void finish_reduction(const Stream& stream);
  /// After it: buffers that add up have the sum of all processes.
  void combine_sums(const Stream& stream) const;
  /// The step's numbers (ops::StepNumber): adds up loss and stop requests of all processes, and sets the sum of squares
  /// of the gradients, the same for all.
  void combine_numbers(const Stream& stream, const Optimizer& optimizer, const Tensor& numbers) const;
  /// Counts of the host, added up.
  void combine(std::int64_t& tokens, std::int64_t& targets) const;
  void combine(ops::DenominatorReport& report) const;
  /// Throws MachineError where the exchange of a step has failed.
  void check() const;

 private:
  WorkShare work_;
  ParameterStore* store_;
  Communicator* communicator_ = nullptr;  // between the processes' devices; null as the next two in one process
  std::unique_ptr<ShardLayout> layout_;
  std::unique_ptr<GradientReducer> reducer_;
};

/// Elements of a bucket of gradients that travel in this dtype.
std::int64_t bucket_elements(const ParallelSettings& parallel, DType dtype);

}  // namespace furlong
