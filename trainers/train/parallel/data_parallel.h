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

/// The exchange between ranks that train one model; with one process it does nothing. All ranks call the non-const
/// functions in the same order. Movable: its parts refer to each other through memory that does not move.
class DataParallel {
 public:
  /// `group` is null for one process. `group` and `store` must outlive this object.
  DataParallel(const Settings& settings, ParameterStore& store, const Device& device, const ProcessGroup* group);

  /// Null: this process alone.
  const ProcessGroup* group() const { return work_.group(); }
  /// Whether this is rank 0.
  bool is_first() const { return !group() || group()->is_first(); }
  /// This rank's share of each batch.
  const WorkShare& work() const { return work_; }
  /// Null: this process alone.
  const GradientReducer* reducer() const { return reducer_.get(); }
  /// The elements of the store's trained parameters that this rank writes to checkpoints. Only with several ranks.
  std::vector<OwnedRange> owned_ranges() const { return layout_->ranges(group()->rank()); }
  /// Makes the optimizer over the store; with parallel.zero_stage: 1, over this rank's ranges.
  Optimizer make_optimizer(const Settings& settings) const;

  /// Call this before a step. Clears buffers that accumulate sums on all ranks except the first.
  void split_sums() const;
  /// Starts the reduction of the step's gradients: the next backward, on this tape, is the last one that adds to them.
  /// After finish_reduction(), which follows ParameterStore::complete_gradients(), they are the sums over all ranks.
  void begin_reduction(const Tape& tape);
  /// See GradientReducer::abandon.
  void abandon_reduction();
  /// See GradientReducer::finish: blocks on a CPU; on a GPU, `stream` waits.
  void finish_reduction(const Stream& stream);
  /// Call this after the reduction. Sums the accumulating buffers over all ranks.
  void combine_sums(const Stream& stream) const;
  /// Combines the step's numbers (ops::StepNumber): sums loss and stop requests over all ranks, and sets the sum of
  /// squares of the gradients, the same on all ranks.
  void combine_numbers(const Stream& stream, const Optimizer& optimizer, const Tensor& numbers) const;
  /// Sums counters in host memory over all ranks.
  void combine(std::int64_t& tokens, std::int64_t& targets) const;
  /// Sums the counts of denominators over all ranks, and takes the minimum of the smallest ones.
  void combine(ops::DenominatorReport& report) const;
  /// Throws MachineError if a collective of the step has failed.
  void check() const;

 private:
  WorkShare work_;
  ParameterStore* store_;
  Communicator* communicator_ = nullptr;  // between the ranks' devices; null for one process, like the next two
  std::unique_ptr<ShardLayout> layout_;
  std::unique_ptr<GradientReducer> reducer_;
};

/// Returns the number of elements of a gradient bucket that is reduced in `dtype`.
std::int64_t bucket_elements(const ParallelSettings& parallel, DType dtype);

}  // namespace furlong
