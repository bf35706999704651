#include "trainers/checkpoint_saver.h"

#include <chrono>
#include <utility>

#include "communication/socket.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/trace.h"

namespace furlong {

CheckpointSaver::CheckpointSaver(const Trainer& trainer, const ProcessGroup& group, bool in_background)
    : trainer_(trainer), group_(group.is_alone() ? nullptr : &group), in_background_(in_background) {}

CheckpointSaver::~CheckpointSaver() {
  if (under_way_.valid()) under_way_.wait();
}

void CheckpointSaver::check() {
  if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) under_way_.get();
}

void CheckpointSaver::wait() {
  if (under_way_.valid()) under_way_.get();
}

bool CheckpointSaver::copy(CheckpointParts& parts) {
  if (!in_background_) return false;
  try {
    parts = parts.copy();
    return true;
  } catch (const MachineError& error) {
    if (!std::exchange(told_of_memory_, true))
      spdlog::warn(
          "checkpoint.background: there is no memory for a copy of what a checkpoint holds ({}); training waits while it is written",
          error.what());
    return false;
  }
}

void CheckpointSaver::save(const std::filesystem::path& path, const std::string& metrics, std::function<void()> when_whole) {
  const trace::Span span("checkpoint", "checkpoint", {.step = trainer_.steps()});
  wait();
  CheckpointParts parts = trainer_.checkpoint_parts(metrics);
  const bool is_copied = copy(parts);
  auto write = [path, parts = std::move(parts), group = group_, when_whole = std::move(when_whole)] {
    write_checkpoint(path, parts, group);
    when_whole();
  };
  if (!is_copied) return write();
  const SignalsBlocked blocked;  // they are the main thread's
  under_way_ = std::async(std::launch::async, [write = std::move(write), step = trainer_.steps()] {
    trace::name_thread("checkpoint");
    const trace::Span span("checkpoint", "write", {.step = step});
    write();
  });
}

}  // namespace furlong
