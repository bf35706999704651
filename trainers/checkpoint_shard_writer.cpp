#include "trainers/checkpoint_shard_writer.h"

#include <algorithm>
#include <cstring>

#include "framework/core/error.h"
#include "framework/io/checkpoint_shards.h"

namespace furlong {
namespace {

/// The kinds of tensors that a checkpoint has of each trained parameter.
std::vector<std::string> kinds_of(const Optimizer& optimizer) {
  std::vector<std::string> kinds{"parameters", "first_moments", "second_moments"};
  if (optimizer.averages()) kinds.emplace_back("averages");
  return kinds;
}

/// Where elements of the store's flat tensors, `begin` on, lie in a tensor of the optimizer.
std::int64_t place_of(const Optimizer& optimizer, std::int64_t begin) {
  for (const OwnedRange& range : optimizer.ranges())
    if (range.begin <= begin && begin < range.end) return range.place + begin - range.begin;
  throw ContractError("the optimizer has no element {}", begin);
}

const Tensor& tensor_of(const std::string& kind, const Optimizer& optimizer) {
  return kind == "first_moments" ? optimizer.first_moment() : kind == "second_moments" ? optimizer.second_moment() : optimizer.average();
}

/// All that is stored of one parameter's elements [first, first + count).
void write_pieces(CheckpointWriter& file, const ParameterStore& store, const Optimizer& optimizer, const Parameter& parameter,
                  std::int64_t first, std::int64_t count) {
  const std::int64_t begin = store.offset(parameter) + first;
  for (const std::string& kind : kinds_of(optimizer)) {
    const Tensor part = kind == "parameters" ? store.values().narrow(0, begin, count)
                                             : tensor_of(kind, optimizer).narrow(0, place_of(optimizer, begin), count);
    const Tensor host = part.to(Device{});
    file.tensor(piece_name(kind + "/" + parameter.name(), first), name_of(host.dtype()), std::span(&count, 1), host.address());
  }
}

}  // namespace

void write_shard(const std::filesystem::path& checkpoint, const ParameterStore& store, const Optimizer& optimizer,
                 const std::vector<OwnedRange>& ranges, const ProcessGroup& group) {
  CheckpointWriter file(shard_path(checkpoint, group.rank(), group.size()));
  for (const Parameter& parameter : store.parameters()) {
    if (!store.is_trained(parameter)) continue;
    const std::int64_t begin = store.offset(parameter), end = begin + parameter.shape().elements();
    for (const OwnedRange& range : ranges) {
      if (range.everywhere && !group.is_first()) continue;
      const std::int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
      if (from < to) write_pieces(file, store, optimizer, parameter, from - begin, to - from);
    }
  }
  file.finish();
}

void write_shard_index(CheckpointWriter* file, const std::filesystem::path& checkpoint, const ParameterStore& store,
                       const Optimizer& optimizer, const ProcessGroup& group) {
  const auto stated = checkpoint_checksum(shard_path(checkpoint, group.rank(), group.size()));
  if (!stated) throw MachineError("{}: cannot be read again", shard_path(checkpoint, group.rank(), group.size()).string());
  constexpr std::int64_t width = sizeof(std::uint64_t);
  const Tensor own = Tensor::empty({width}, DType::uint8), all = Tensor::empty({group.size() * width}, DType::uint8);
  std::memcpy(own.address(), &*stated, sizeof *stated);
  group.communicator().all_gather(Stream{}, own, all).wait();
  if (!file) return;
  ShardIndex index;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::uint64_t checksum = 0;
    std::memcpy(&checksum, all.data<std::uint8_t>() + rank * width, sizeof checksum);
    index.files.push_back({shard_path(checkpoint, rank, group.size()).filename().string(), checksum});
  }
  for (const Parameter& parameter : store.parameters()) {
    if (!store.is_trained(parameter)) continue;
    for (const std::string& kind : kinds_of(optimizer))
      index.tensors[kind + "/" + parameter.name()] = {name_of(store.master_dtype()), {parameter.shape().begin(), parameter.shape().end()}};
  }
  file->text("shards", index.to_json());
}

}  // namespace furlong
