#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "trainers/train/trainer.h"

namespace furlong {

/// Writes the checkpoints of a run: synchronously, or asynchronously from a copy in its own thread while training
/// continues. If that thread fails, it notifies the other ranks at once, because this rank might be waiting for them.
class CheckpointSaver {
 public:
  /// Delay before the first log line about training that waits for a checkpoint, and interval of the next ones.
  struct Notice {
    std::chrono::milliseconds after{std::chrono::minutes(1)}, every{std::chrono::minutes(5)};
  };

  /// The arguments must outlive the saver. `group` is the trainer's group.
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool in_background, const Notice& notice);
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool in_background);
  /// Waits for the write in progress. If another rank has failed, it waits no longer than the group's abort timeout.
  /// Ignores a failed write: call wait() to get its error.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Writes the current step to `path`, after the previous checkpoint is complete. Then calls `when_whole`, from the
  /// writing thread. Throws the error of this write or of the previous one. If the copy does not fit in host memory,
  /// writes synchronously and logs this once.
  void save(const std::filesystem::path& path, const std::string& metrics, std::function<void()> when_whole);
  /// Throws the error of the last write, if it has failed.
  void check();
  /// Waits for the write in progress, and throws its error if it fails.
  void wait();

 private:
  bool copy(CheckpointParts& parts);
  void wait_with_notice() const;

  const Trainer& trainer_;
  const ProcessGroup* group_;  // null: a single process
  bool in_background_, warned_about_memory_ = false;
  const Notice notice_;
  std::filesystem::path path_;  ///< of the write in progress
  std::future<void> under_way_;
};

}  // namespace furlong
