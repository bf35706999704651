#pragma once
// Recorded work, to be run again. Includes CUDA's headers: for files of the CUDA engine only.
#include <cuda_runtime_api.h>

#include <memory>

#include "framework/core/gpu_engine.h"

namespace furlong {

/// Takes the graph over. Throws MachineError.
std::unique_ptr<GpuGraph> make_cuda_graph(cudaGraph_t graph, int index);

}  // namespace furlong
