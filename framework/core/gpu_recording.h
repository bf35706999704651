#pragma once
// Work on a GPU that is recorded once and replayed, with calls of the host between its parts.
#include <functional>
#include <memory>
#include <vector>

#include "framework/core/gpu_engine.h"

namespace furlong {

/// Work of a device's main stream, as graphs (GpuGraph) and calls of the host between them. A call issues what cannot
/// be part of a graph: operations of a communicator, which each rank may replay or run without regard to the others.
class GpuRecording {
 public:
  explicit GpuRecording(const Device& device) : stream_{device}, engine_(require_gpu_engine(device.type)) {}

  /// Calls `work` and records what it launches; nothing runs on the device. Call it once. If `work` throws, the object
  /// is useless. Throws MachineError if the device cannot record, and what `work` throws.
  void record(const std::function<void()>& work);
  /// Launches the recorded work and makes the calls, in order. The host does not wait for the device. Throws what a
  /// call throws.
  void replay() const;

  /// Returns the object whose record() runs in this thread; null if none does.
  static GpuRecording* current();
  const Device& device() const { return stream_.device; }
  /// Within record(): adds a call after the work recorded so far. It is made in each replay, and not now. It must not
  /// own memory of the recorded work, which later work reuses, but may use its addresses. What else it uses must
  /// outlive this object.
  void add_call(std::function<void()> call);
  /// Within record(): keeps `owner` until record() returns, so that work recorded later does not reuse its memory.
  void keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }

 private:
  void end_part();

  Stream stream_;
  GpuEngine& engine_;
  std::vector<std::function<void()>> parts_;
  std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace furlong
