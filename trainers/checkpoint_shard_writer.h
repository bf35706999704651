#pragma once
#include <filesystem>
#include <string>

#include "communication/process_group.h"
#include "framework/io/checkpoint_file.h"
#include "trainers/optimizer.h"

namespace furlong {

/// This process's part of a checkpoint that belongs at `checkpoint`: of the trained parameters the elements that it owns, with their
/// moments and averages, in a file beside it. `ranges`: what it owns of the store's flat tensors; the optimizer's own ranges where that is
/// sharded. What every process has, rank 0 writes.
void write_shard(const std::filesystem::path& checkpoint, const ParameterStore& store, const Optimizer& optimizer,
                 const std::vector<OwnedRange>& ranges, const ProcessGroup& group);

/// Waits until all processes have theirs on disk. Rank 0 then writes what names them into `file`, its own part of the checkpoint, which
/// finish() makes whole; null on the others. All call it.
void write_shard_index(CheckpointWriter* file, const std::filesystem::path& checkpoint, const ParameterStore& store,
                       const Optimizer& optimizer, const ProcessGroup& group);

}  // namespace furlong
