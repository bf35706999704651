#include "trainers/checkpoint/checkpoint_parts.h"

#include <chrono>
#include <memory>
#include <thread>

#include "framework/core/error.h"
#include "framework/io/checkpoint_copy.h"

namespace furlong {
namespace {

CheckpointParts::Put copied(const CheckpointParts::Put& put) {
  if (!put) return nullptr;
  const auto copy = std::make_shared<CheckpointCopy>();
  put(*copy);
  return [copy](CheckpointSink& file) { copy->write(file); };
}

/// Writes a shard and returns the checksum stored in it.
std::uint64_t write_shard(const std::filesystem::path& path, const CheckpointParts::Put& put) {
  CheckpointWriter file(path);
  put(file);
  file.finish();
  const auto stated = checkpoint_checksum(path);
  if (!stated) throw MachineError("{}: cannot read this checkpoint shard back after writing it", path.string());
  return *stated;
}

/// Waits until the file has this checksum. On a network file system, a file written by another host can take seconds to
/// appear or to change.
bool appears(const std::filesystem::path& path, std::uint64_t checksum, std::chrono::steady_clock::time_point end) {
  for (;;) {
    if (checkpoint_checksum(path) == checksum) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

CheckpointParts CheckpointParts::copy() const { return {copied(shard), copied(state), index}; }

void write_checkpoint(const std::filesystem::path& path, const CheckpointParts& parts, const ProcessGroup* group,
                      std::chrono::milliseconds patience) {
  ShardIndex index = parts.index;
  if (group) {
    const auto place = [&](int rank) { return shard_path(path, rank, group->size()); };
    const std::uint64_t own = write_shard(place(group->rank()), parts.shard);
    const std::vector<std::string> stated =
        group->gather_text(std::to_string(own), fmt::format("its shard of {}", path.string()));
    const auto end = std::chrono::steady_clock::now() + patience;
    for (int rank = 0; rank < static_cast<int>(stated.size()); ++rank) {
      const std::uint64_t checksum = std::stoull(stated[static_cast<std::size_t>(rank)]);
      if (!appears(place(rank), checksum, end))
        throw UserError(
            "{}: rank {} wrote this checkpoint shard, but rank 0 cannot see it after {} s; expected a run directory "
            "that all ranks share: put run_directory on a file system that all hosts mount",
            place(rank).string(), rank, std::chrono::duration<double>(patience).count());
      index.files.push_back({place(rank).filename().string(), checksum});
    }
  }
  if (!parts.state) return;
  CheckpointWriter file(path);
  if (group) file.text("shards", index.to_json());
  parts.state(file);
  file.finish();
}

}  // namespace furlong
