#include "trainers/train/checkpoint_shard.h"

#include <algorithm>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// The groups of tensors that a checkpoint stores for each trained parameter.
std::vector<std::string> kinds_of(const Optimizer& optimizer) {
  std::vector<std::string> kinds{"parameters", "first_moments", "second_moments"};
  if (optimizer.has_ema()) kinds.emplace_back("ema");
  return kinds;
}

/// Maps element `begin` of the store's flat tensors to its index in the optimizer's tensors.
std::int64_t place_of(const Optimizer& optimizer, std::int64_t begin) {
  for (const OwnedRange& range : optimizer.ranges())
    if (range.begin <= begin && begin < range.end) return range.place + begin - range.begin;
  throw ContractError("the optimizer does not own element {}", begin);
}

const Tensor& tensor_of(const std::string& kind, const Optimizer& optimizer) {
  return kind == "first_moments"    ? optimizer.first_moment()
         : kind == "second_moments" ? optimizer.second_moment()
                                    : optimizer.ema();
}

/// Writes all stored tensors of one parameter's elements [first, first + count).
void put_pieces(CheckpointSink& file, const ParameterStore& store, const Optimizer& optimizer,
                const Parameter& parameter, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = store.offset(parameter) + first;
  for (const std::string& kind : kinds_of(optimizer)) {
    const Tensor part = kind == "parameters" ? store.values().narrow(0, begin, count)
                                             : tensor_of(kind, optimizer).narrow(0, place_of(optimizer, begin), count);
    const Tensor host = part.to(Device{});
    file.tensor(piece_name(kind + "/" + parameter.name(), first), name_of(host.dtype()), std::span(&count, 1),
                host.address());
  }
}

}  // namespace

void put_shard(CheckpointSink& file, const ParameterStore& store, const Optimizer& optimizer,
               const std::vector<OwnedRange>& ranges, bool is_first) {
  for (const Parameter& parameter : store.parameters()) {
    if (!store.is_trained(parameter)) continue;
    const std::int64_t begin = store.offset(parameter), end = begin + parameter.shape().elements();
    for (const OwnedRange& range : ranges) {
      if (range.everywhere && !is_first) continue;
      const std::int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
      if (from < to) put_pieces(file, store, optimizer, parameter, from - begin, to - from);
    }
  }
}

std::map<std::string, ShardIndex::Whole> sharded_tensors(const ParameterStore& store, const Optimizer& optimizer) {
  std::map<std::string, ShardIndex::Whole> tensors;
  for (const Parameter& parameter : store.parameters()) {
    if (!store.is_trained(parameter)) continue;
    for (const std::string& kind : kinds_of(optimizer))
      tensors[kind + "/" + parameter.name()] = {name_of(store.master_dtype()),
                                                {parameter.shape().begin(), parameter.shape().end()}};
  }
  return tensors;
}

}  // namespace furlong
