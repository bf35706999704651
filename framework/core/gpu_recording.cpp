#include "framework/core/gpu_recording.h"

#include <utility>

namespace furlong {
namespace {

GpuRecording*& recording_of_this_thread() {
  thread_local GpuRecording* recording = nullptr;
  return recording;
}

}  // namespace

GpuRecording* GpuRecording::current() { return recording_of_this_thread(); }

void GpuRecording::record(const std::function<void()>& work) {
  require(current() == nullptr && parts_.empty(), "GpuRecording: one record() at a time, and one of each object");
  recording_of_this_thread() = this;
  try {
    engine_.begin_capture(stream_);
    work();
    end_part();
  } catch (...) {
    engine_.abandon_capture(stream_);
    recording_of_this_thread() = nullptr;
    kept_.clear();
    throw;
  }
  recording_of_this_thread() = nullptr;
  kept_.clear();
}

void GpuRecording::replay() const {
  for (const auto& part : parts_) part();
}

void GpuRecording::add_call(std::function<void()> call) {
  require(current() == this, "GpuRecording: a call was added outside record()");
  end_part();
  parts_.push_back(std::move(call));
  engine_.begin_capture(stream_);
}

void GpuRecording::end_part() {
  const std::shared_ptr<GpuGraph> graph = engine_.end_capture(stream_);
  if (graph) parts_.emplace_back([graph, stream = stream_] { graph->replay(stream); });
}

}  // namespace furlong
