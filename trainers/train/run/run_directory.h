#pragma once
#include <filesystem>
#include <memory>

#include "communication/process_group.h"

namespace furlong {

/// The folder of a run while it is trained in: made where it is missing, and one training's at a time.
class RunDirectory {
 public:
  /// Rank 0 makes and locks it; the others find what rank 0 has put there. Throws UserError where another training has
  /// it, or where it is not one folder for all processes. All of the group call it.
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
  std::unique_ptr<Lock> lock_;  // rank 0's
};

}  // namespace furlong
