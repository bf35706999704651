#pragma once
#include <chrono>
#include <filesystem>
#include <functional>

#include "communication/process_group.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"

namespace furlong {

/// The parts of one checkpoint that this rank writes. A null function writes nothing.
struct CheckpointParts {
  using Put = std::function<void(CheckpointSink& file)>;
  Put shard;  ///< world size > 1: the elements of the sharded tensors that this rank owns
  Put state;  ///< rank 0: everything else
  /// world size > 1: the tensors that the shards of all ranks form together; file names are still empty
  ShardIndex index;

  /// Returns a snapshot on the host that later training steps do not change. Throws MachineError if it does not fit in
  /// host memory.
  CheckpointParts copy() const;
};

/// Writes a checkpoint to `path`. With several ranks each rank writes its shard. Rank 0 waits for all of them, gives
/// each shard file `patience` to become visible on a shared file system, and then writes the checkpoint file that names
/// the shards; only this file makes the checkpoint complete. `group` is null for one process. All ranks of `group` call
/// this function, from any thread, one call at a time.
void write_checkpoint(const std::filesystem::path& path, const CheckpointParts& parts, const ProcessGroup* group,
                      std::chrono::milliseconds patience = std::chrono::seconds(30));

}  // namespace furlong
