#pragma once
// CUDA graphs of training steps: a step is recorded once and replayed, which launches its hundreds of kernels at once.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/arena.h"
#include "framework/core/gpu_recording.h"

namespace furlong {

/// Runs each step's work on a GPU, or replays its recording. Everything that changes from step to step must be read
/// from device memory with fixed addresses. Replayed and run steps are then bitwise equal. Operations of a communicator
/// are issued by the host in each step, between recorded parts (GpuRecording), so a rank may replay a step that another
/// rank runs.
class StepGraph {
 public:
  using Work = std::function<void()>;
  explicit StepGraph(const Device& device) : device_(device) {}

  /// Runs `work`, or replays its recording, on the device's main stream; the host does not wait for it. `shapes`
  /// identifies what a recording depends on: other shapes discard the recording. The first two steps of the same shapes
  /// are run, because they fill the caches and workspaces that later steps reuse; the third is recorded. If a step
  /// cannot be recorded, logs a warning and runs all later steps. Errors of `work` reach the caller.
  void run(const std::string& shapes, const Work& work);
  /// Frees the recording and its memory, for work that needs the memory more. A later step records again.
  void forget();
  /// Returns whether a recording holds device memory.
  bool holds_memory() const { return pool_ != nullptr; }
  /// Returns whether the last step was replayed.
  bool replayed() const { return replayed_; }
  /// Returns why steps are no longer recorded; empty while they are.
  const std::string& refused() const { return refused_; }

 private:
  static constexpr int steps_to_warm_up = 2;

  void record(const Work& work);

  Device device_;
  std::unique_ptr<ArenaPool> pool_;      // allocations of the recorded work
  std::unique_ptr<GpuRecording> graph_;  // destroyed before the pool
  std::string shapes_, refused_;
  std::map<std::string, std::int64_t> pool_bytes_;  // by shapes: later estimates would include earlier pools
  int steady_ = 0;                                  // consecutive run steps of these shapes
  bool replayed_ = false;
};

}  // namespace furlong
