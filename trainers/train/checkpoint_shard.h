#pragma once
#include <map>
#include <string>
#include <vector>

#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"
#include "trainers/train/optimizer/optimizer.h"

namespace furlong {

/// Writes this rank's shard of a checkpoint: the trained parameters' elements that it owns, with their moments and EMA.
/// `ranges`: the elements of the store's flat tensors that the rank owns; if the optimizer is sharded, the optimizer's
/// own ranges. With `is_first` (rank 0) it also writes the elements that every rank has.
void put_shard(CheckpointSink& file, const ParameterStore& store, const Optimizer& optimizer,
               const std::vector<OwnedRange>& ranges, bool is_first);

/// Returns the tensors that the shards of all ranks form together (ShardIndex::tensors).
std::map<std::string, ShardIndex::Whole> sharded_tensors(const ParameterStore& store, const Optimizer& optimizer);

}  // namespace furlong
