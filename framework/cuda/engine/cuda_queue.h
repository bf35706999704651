#pragma once
// CUDA's streams and events as the engine hands them out. Includes CUDA's headers: for files of the CUDA engine only.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "framework/core/gpu_engine.h"

namespace furlong {

/// GpuEngine::make_queue and make_event.
std::unique_ptr<GpuQueue> make_cuda_queue(int index);
std::unique_ptr<GpuEvent> make_cuda_event(int index);

/// GpuDescription::identity: as nvidia-smi -L writes it, "GPU-8f6d2a1c-0b5e-...".
std::string cuda_identity(const cudaUUID_t& uuid);

}  // namespace furlong
