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
    graph_->replay(Stream{device_});
    replayed_ = true;
    return;
  }
  work();
  ++steady_;
}

void StepGraph::record(const Work& work) {
  const ArenaCounters counters = arena(device_).counters();
  // The peak use of past steps beyond persistent tensors, plus some slack for different fragmentation.
  const std::int64_t bytes = counters.system_bytes - counters.bytes_in_use;
  const Stream stream{device_};
  GpuEngine& engine = require_gpu_engine(device_.type);
  try {
    pool_ = std::make_unique<ArenaPool>(device_, bytes + bytes / 16 + (std::int64_t{4} << 20));
    engine.begin_capture(stream);
    {
      const ArenaPool::Use use(*pool_);
      work();
    }
    graph_ = engine.end_capture(stream);
  } catch (const DeviceFault&) {  // rethrown: steps without recording would fail as well
    engine.abandon_capture(stream);
    throw;
  } catch (const CaptureError& error) {
    refused_ = error.what();
  } catch (const MachineError& error) {
    refused_ = error.what();
  } catch (...) {
    engine.abandon_capture(stream);
    throw;
  }
  if (graph_) return;
  engine.abandon_capture(stream);
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
