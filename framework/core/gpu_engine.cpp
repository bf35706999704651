#include "framework/core/gpu_engine.h"

#include "framework/core/error.h"

namespace furlong {
namespace {

// Set before main() by static objects in unspecified order; hence constant-initialized.
constinit GpuEngine* cuda_engine = nullptr;
constinit GpuEngine* simulated_engine = nullptr;

}  // namespace

GpuEngine* gpu_engine(DeviceType type) {
  return type == DeviceType::cuda ? cuda_engine : type == DeviceType::simulated ? simulated_engine : nullptr;
}

GpuEngine& require_gpu_engine(DeviceType type) {
  GpuEngine* engine = gpu_engine(type);
  require(engine != nullptr, "this build has no engine for {}", Device{type, 0}.text());
  return *engine;
}

GpuEngineRegistration::GpuEngineRegistration(DeviceType type, GpuEngine& engine) {
  (type == DeviceType::cuda ? cuda_engine : simulated_engine) = &engine;
}

void synchronize(const Stream& stream) {
  if (stream.device.is_gpu()) require_gpu_engine(stream.device.type).synchronize(stream);
}

}  // namespace furlong
