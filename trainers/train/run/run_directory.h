#pragma once
#include <chrono>
#include <filesystem>
#include <memory>

#include "communication/process_group.h"
#include "framework/core/error.h"

namespace furlong {

/// Another training has locked the run directory.
class RunDirectoryInUse : public UserError {
 public:
  using UserError::UserError;
};

/// The lock of an existing directory: only one training uses it.
class RunLock {
 public:
  /// Throws RunDirectoryInUse, or UserError or MachineError if the lock's file cannot be created. On a file system
  /// without locks, logs a warning instead (lock_file()).
  explicit RunLock(const std::filesystem::path& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Returns whether `path` still leads to the locked directory.
  bool is_at(const std::filesystem::path& path) const;

 private:
  int descriptor_;      // of the lock's file
  int directory_ = -1;  // -1: not known
};

/// The run directory during training. Only one training at a time can use it.
class RunDirectory {
 public:
  /// Rank 0 creates and locks the directory; the other ranks check that they see rank 0's files, and can write. They
  /// look for up to 60 s, with a warning after 3 s, or for 3 s if all ranks are on one host. All ranks of the group
  /// call it. Throws UserError or MachineError if the directory cannot be created, UserError if the ranks do not share
  /// it or a rank cannot write, RunDirectoryInUse if another training has locked it. On a file system without locks,
  /// logs a warning instead (lock_file()).
  RunDirectory(std::filesystem::path path, const ProcessGroup& group);
  /// The same, with the time that the other ranks look for rank 0's file.
  RunDirectory(std::filesystem::path path, const ProcessGroup& group, std::chrono::seconds patience);
  /// Unlocks the directory.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  /// Rank 0: throws UserError if another directory, or none, has this one's path now. Its files would get among those
  /// of another run.
  void check_in_place() const;
  /// All ranks: each throws UserError if rank 0 finds another directory, or none, there.
  void check_in_place(const ProcessGroup& group) const;

 private:
  [[noreturn]] void throw_moved() const;

  std::filesystem::path path_;
  std::unique_ptr<RunLock> lock_;  // rank 0 only
};

/// Throws UserError if `output` is, or lies among, the files that a training in the directory `run` writes. `option` is
/// where its path comes from. Neither needs to exist.
void refuse_file_of_run(const std::filesystem::path& run, const std::filesystem::path& output, const char* option);

}  // namespace furlong
