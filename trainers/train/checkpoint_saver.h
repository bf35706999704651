#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "trainers/train/trainer.h"

namespace furlong {

/// Writes the checkpoints of a run: in a thread of its own from a copy, while training goes on, or before save()
/// returns. Where that thread fails, it tells the other processes at once, which might otherwise wait for this one
/// while this one waits for them.
class CheckpointSaver {
 public:
  /// When, and how often from then on, training that waits for a checkpoint says so.
  struct Notice {
    std::chrono::milliseconds after{std::chrono::minutes(1)}, every{std::chrono::minutes(5)};
  };

  /// All outlive it. group: of the trainer.
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool in_background, const Notice& notice);
  CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool in_background);
  /// Waits for what is being written; among several processes, where one has failed, no longer than the group lets this
  /// one live. Why that failed is nobody's concern any more: whoever wants to know has called wait().
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// The present step, to `path`, once the checkpoint before it is whole. `when_whole` is called behind it, from the
  /// thread that wrote. Throws what this or the one before failed by. Where memory has no room for the copy it is
  /// written here, which is told once.
  void save(const std::filesystem::path& path, const std::string& metrics, std::function<void()> when_whole);
  /// Throws what the last one failed by, if it has.
  void check();
  /// The same, when it is whole or has failed.
  void wait();

 private:
  bool copy(CheckpointParts& parts);
  void wait_with_notice() const;

  const Trainer& trainer_;
  const ProcessGroup* group_;  // null: this process alone
  bool in_background_, told_of_memory_ = false;
  const Notice notice_;
  std::filesystem::path path_;  ///< of what is being written
  std::future<void> under_way_;
};

}  // namespace furlong
