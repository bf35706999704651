#pragma once
#include <filesystem>
#include <memory>

#include "communication/process_group.h"

namespace furlong {

/// The folder of a run during training. Only one training at a time can use it.
class RunDirectory {
 public:
  /// Rank 0 creates and locks the folder; the other ranks check that they see rank 0's files. Throws UserError if
  /// another training has locked it, or if the ranks do not share the folder. All ranks of the group call it.
  RunDirectory(std::filesystem::path path, const ProcessGroup& group);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }

 private:
  class Lock;
  std::filesystem::path path_;
  std::unique_ptr<Lock> lock_;  // rank 0 only
};

}  // namespace furlong
