#pragma once
#include <chrono>
#include <filesystem>
#include <functional>

#include "communication/process_group.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"

namespace furlong {

/// What this process has to write of one checkpoint. A function that is null: nothing.
struct CheckpointParts {
  using Put = std::function<void(CheckpointSink& file)>;
  Put shard;         ///< of several processes: this one's elements of the sharded tensors
  Put state;         ///< rank 0: everything else
  ShardIndex index;  ///< of several processes: what their shards hold together, without the files

  /// The same as it is now, whatever the run does next. Throws MachineError where the host's memory has no room for it.
  CheckpointParts copy() const;
};

/// Writes them. Of several processes each writes its shard; rank 0 waits for all of these, looks for them with
/// `patience`, and then writes the checkpoint that names them and makes it whole. `group`: null in one process; all of
/// it call this, in any thread, one at a time.
void write_checkpoint(const std::filesystem::path& path, const CheckpointParts& parts, const ProcessGroup* group,
                      std::chrono::milliseconds patience = std::chrono::seconds(30));

}  // namespace furlong
