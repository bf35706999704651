#pragma once
// The share of a batch that each rank computes: some of its samples, and a segment of each of them.
#include <memory>

#include "communication/process_group.h"
#include "datasets/batch.h"
#include "layers/context.h"

namespace furlong {

/// A grid of ranks with rows of `context_parallel_size` ranks (context parallelism). The ranks of a row have the same
/// samples and each a segment of their tokens; the rows share the samples. Rank r has place r % context_parallel_size
/// in row r / context_parallel_size.
class WorkShare {
 public:
  /// One process: the whole batch.
  WorkShare();
  /// Connects the ranks of a row. All ranks of the group call it; `group` must outlive this object. A null `group`
  /// means one process.
  WorkShare(const ProcessGroup* group, int context_parallel_size);
  WorkShare(WorkShare&&) noexcept;
  WorkShare& operator=(WorkShare&&) noexcept;
  ~WorkShare();

  /// Null: one process.
  const ProcessGroup* group() const { return group_; }
  /// Returns the samples of a batch that this rank's row computes.
  SampleShare samples(std::int64_t batch_size) const;
  /// Returns a copy of this rank's segment of each row; without context parallelism, the whole batch. Throws
  /// ContractError if a row's length does not divide by the number of segments, or if the batch has labels.
  Batch cut(const Batch& batch, bool counts_targets) const;
  /// Gives layers access to the other segments of the rows that `segment` was cut from, and sets the positions of its
  /// tokens in their documents, until the next call. All ranks of a row call it.
  void put_into(layers::ForwardContext& context, const Batch& segment) const;

 private:
  class Segments;
  const ProcessGroup* group_ = nullptr;
  int context_parallel_size_ = 1, place_ = 0;  // place_: in the row
  std::unique_ptr<Segments> segments_;         // null: rows are not split
};

}  // namespace furlong
