#pragma once
// CUDA streams and events. Includes CUDA headers: only for files of the CUDA engine.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "framework/core/gpu_engine.h"

namespace furlong {

/// Implement GpuEngine::make_queue and make_event.
std::unique_ptr<GpuQueue> make_cuda_queue(int index);
std::unique_ptr<GpuEvent> make_cuda_event(int index);

/// Returns GpuDescription::identity in the format of nvidia-smi -L, "GPU-8f6d2a1c-0b5e-...".
std::string cuda_identity(const cudaUUID_t& uuid);

}  // namespace furlong
