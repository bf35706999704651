#include "trainers/train/step_graph.h"

#include "framework/core/device_fault.h"
#include "framework/core/log.h"

namespace furlong {

void StepGraph::run(const std::string& shapes, const Work& work) {
  replayed_ = false;
  if (shapes != shapes_) {
    forget();
    shapes_ = shapes;
  }
  if (!graph_ && refused_.empty() && steady_ >= steps_to_warm_up) record(work);
  if (graph_) {
    graph_->replay();
    replayed_ = true;
    return;
  }
  work();
  ++steady_;
}

void StepGraph::record(const Work& work) {
  const ArenaCounters counters = arena(device_).counters();
  // The peak use of past steps beyond persistent tensors, plus some slack for different fragmentation.
  const std::int64_t used = counters.system_bytes - counters.bytes_in_use;
  const std::int64_t bytes = pool_bytes_.try_emplace(shapes_, used + used / 16 + (std::int64_t{4} << 20)).first->second;
  try {
    pool_ = std::make_unique<ArenaPool>(device_, bytes);
    auto recording = std::make_unique<GpuRecording>(device_);
    const ArenaPool::Use use(*pool_);
    recording->record(work);
    graph_ = std::move(recording);
    return;
  } catch (const DeviceFault&) {  // steps without recording would fail as well
    throw;
  } catch (const CaptureError& error) {
    refused_ = error.what();
  } catch (const MachineError& error) {
    refused_ = error.what();
  }
  pool_.reset();
  log_warn("trainer.cuda_graph: the step cannot be recorded; kernels are launched one by one from now on: {}",
           refused_);
}

void StepGraph::forget() {
  graph_.reset();
  pool_.reset();
  steady_ = 0;
}

}  // namespace furlong
