#include "trainers/train/checkpoint_saver.h"

#include <chrono>
#include <utility>

#include "communication/job_store/socket.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/trace.h"

namespace furlong {

CheckpointSaver::CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool async, const Notice& notice)
    : trainer_(trainer), group_(group.is_alone() ? nullptr : &group), async_(async), notice_(notice) {}

CheckpointSaver::CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool async)
    : CheckpointSaver(trainer, group, async, Notice{}) {}

CheckpointSaver::~CheckpointSaver() {
  if (writing_.valid()) writing_.wait();
}

void CheckpointSaver::check() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) writing_.get();
}

void CheckpointSaver::wait() {
  if (!writing_.valid()) return;
  wait_with_notice();
  writing_.get();
}

/// Logs while it waits, so that a hanging file system is visible.
void CheckpointSaver::wait_with_notice() const {
  const auto begin = Clock::now();
  for (auto patience = notice_.after; writing_.wait_for(patience) != std::future_status::ready;
       patience = notice_.every)
    log_warn("{}: training has been waiting for {:.0f} s until {} is written", path_.string(), seconds_since(begin),
             group_ && !group_->is_first() ? "this rank's shard" : "the checkpoint");
}

bool CheckpointSaver::copy(CheckpointParts& parts) {
  if (!async_) return false;
  try {
    parts = parts.copy();
    return true;
  } catch (const MachineError& error) {
    if (!std::exchange(warned_about_memory_, true))
      log_warn("checkpoint.async: not enough memory for a copy of the checkpoint ({}); it is written synchronously",
               error.what());
    return false;
  }
}

void CheckpointSaver::save(const std::filesystem::path& path, const std::string& metrics,
                           std::function<void()> on_complete) {
  const trace::Span span("checkpoint", "checkpoint", {.step = trainer_.steps()});
  wait();
  CheckpointParts parts = trainer_.checkpoint_parts(metrics);
  const bool is_copied = copy(parts);
  auto write = [path, parts = std::move(parts), group = group_, on_complete = std::move(on_complete)] {
    write_checkpoint(path, parts, group);
    on_complete();
  };
  if (!is_copied) return write();
  const SignalsBlocked blocked;  // signals go to the main thread
  path_ = path;
  writing_ = std::async(std::launch::async, [write = std::move(write), group = group_, step = trainer_.steps()] {
    trace::name_thread("checkpoint");
    const trace::Span span("checkpoint", "write", {.step = step});
    try {
      write();
    } catch (const std::exception& error) {
      if (group) group->report(error);
      throw;
    }
  });
}

}  // namespace furlong
