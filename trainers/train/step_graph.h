#pragma once
// A training step recorded once and replayed: a GPU then gets its hundreds of launches at once, without the host
// between them.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"

namespace furlong {

/// Decides for each step whether its work is run, or replayed as it was recorded. The work must read all that changes
/// from step to step from device memory that stays where it is; replayed and run steps are then the same bit for bit.
class StepGraph {
 public:
  using Work = std::function<void()>;
  explicit StepGraph(const Device& device) : device_(device) {}

  /// Runs or replays `work`. `shapes` names what a recording depends on: steps with another name are run, and the first
  /// few of each are too, since they make what later steps find made (caches, workspaces).
  void run(const std::string& shapes, const Work& work);
  /// Gives back the memory of the recording; a later step is recorded anew. For what needs the memory more.
  void forget();
  bool holds_memory() const { return pool_ != nullptr; }
  /// Whether the last step was replayed.
  bool replayed() const { return replayed_; }
  /// Why steps are not recorded any more; empty while they are.
  const std::string& refused() const { return refused_; }

 private:
  static constexpr int steps_to_warm_up = 2;

  void record(const Work& work);

  Device device_;
  std::unique_ptr<ArenaPool> pool_;  // what the recorded work allocates
  std::unique_ptr<GpuGraph> graph_;  // goes before the pool
  std::string shapes_, refused_;
  int steady_ = 0;  // steps of these shapes that were run
  bool replayed_ = false;
};

}  // namespace furlong
