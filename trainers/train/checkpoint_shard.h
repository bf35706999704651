#pragma once
#include <map>
#include <string>
#include <vector>

#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"
#include "trainers/train/optimizer/optimizer.h"

namespace furlong {

/// One process's part of a checkpoint: of the trained parameters the elements that it owns, with their moments and
/// averages. `ranges`: what it owns of the store's flat tensors; the optimizer's own ranges where that is sharded. What
/// every process has, rank 0 puts.
void put_shard(CheckpointSink& file, const ParameterStore& store, const Optimizer& optimizer,
               const std::vector<OwnedRange>& ranges, bool is_first);

/// What the parts of all processes make together: ShardIndex::tensors.
std::map<std::string, ShardIndex::Whole> sharded_tensors(const ParameterStore& store, const Optimizer& optimizer);

}  // namespace furlong
