#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "trainers/train/trainer.h"

namespace furlong {

/// Writes the checkpoints of a run, one at a time. Synchronous: save() writes the file. Asynchronous: save() copies the
/// state to host memory, and a thread writes the file while training continues. If that thread fails, it reports the
/// failure to the other ranks immediately (ProcessGroup::report), because this rank may be blocked in a collective.
/// With several ranks, all ranks call save() for the same steps. Not thread-safe: one thread calls all functions.
class CheckpointSaver {
 public:
  /// When a call that blocks on a slow write logs a warning: first after `after`, then every `every`.
  struct Notice {
    std::chrono::milliseconds after{std::chrono::minutes(1)}, every{std::chrono::minutes(5)};
  };

  /// `trainer` and `group` must outlive the saver. `group` is the group that the trainer was made with, or a group of
  /// one rank if the trainer has none. `async`: write asynchronously (checkpoint.async).
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool async, const Notice& notice);
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool async);
  /// Blocks until the write in progress is done. If another rank has failed, it waits no longer than the group's abort
  /// timeout. Ignores the error of a failed write: call wait() first to get it.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Writes the trainer's current step to `path`. Blocks until the previous write is done; if that one failed, throws
  /// its error and writes nothing. Synchronous: returns when this rank has written its files, and throws UserError or
  /// MachineError if that fails. Asynchronous: returns when the state is copied; check(), wait() or the next save()
  /// throws the error. If the copy does not fit in host memory, writes synchronously, and logs a warning the first
  /// time. `metrics` is the content of the run's metrics.jsonl, which the checkpoint includes. `on_complete` is called
  /// once this rank has written its files, in the writing thread if asynchronous, otherwise in the calling thread. It
  /// is not called if the write fails, and must not be null. On rank 0 the checkpoint of all ranks is then complete.
  void save(const std::filesystem::path& path, const std::string& metrics, std::function<void()> on_complete);
  /// Throws the error of the last asynchronous write if it is done and has failed; never blocks. Each error is thrown
  /// once.
  void check();
  /// Blocks until the write in progress is done, and throws its error if it has failed. Returns immediately if none is
  /// in progress.
  void wait();

 private:
  bool copy(CheckpointParts& parts);
  void wait_with_notice() const;

  const Trainer& trainer_;
  const ProcessGroup* group_;  // null: one rank
  bool async_, warned_about_memory_ = false;
  const Notice notice_;
  std::filesystem::path path_;  // of the write in progress
  std::future<void> writing_;
};

}  // namespace furlong
