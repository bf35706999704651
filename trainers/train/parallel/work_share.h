#pragma once
// What each of several processes does of a batch: some of its samples, and of each of those a segment.
#include <memory>

#include "communication/process_group.h"
#include "datasets/batch.h"
#include "layers/context.h"

namespace furlong {

/// Processes in rows of `sequence_processes`: those of a row have the same samples and each a segment of their tokens,
/// the rows share the samples. Rank r is number r % sequence_processes of row r / sequence_processes.
class WorkShare {
 public:
  /// All of it: one process.
  WorkShare();
  /// Connects the processes of a row; all of the group call it. `group` outlives this. null: one process.
  WorkShare(const ProcessGroup* group, int sequence_processes);
  WorkShare(WorkShare&&) noexcept;
  WorkShare& operator=(WorkShare&&) noexcept;
  ~WorkShare();

  /// null: one process.
  const ProcessGroup* group() const { return group_; }
  SampleShare samples(std::int64_t batch_size) const;
  /// This process's segment of each row. Throws ContractError where a row does not divide, or there are labels.
  Batch cut(const Batch& batch, bool counts_targets) const;
  /// Tells layers of the other segments of the rows that `segment` was cut from, and where its tokens stand in their
  /// documents, until the next call. All processes of a row make it.
  void put_into(layers::ForwardContext& context, const Batch& segment) const;

 private:
  class Segments;
  const ProcessGroup* group_ = nullptr;
  int sequence_processes_ = 1, place_ = 0;  // in its row
  std::unique_ptr<Segments> segments_;      // null: rows are whole
};

}  // namespace furlong
