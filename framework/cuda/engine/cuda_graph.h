#pragma once
// CUDA graphs: recorded work that can be replayed. Includes CUDA headers: only for files of the CUDA engine.
#include <cuda_runtime_api.h>

#include <memory>

#include "framework/core/gpu_engine.h"

namespace furlong {

/// Takes ownership of the graph, and uploads it on the stream. Returns null if it is empty. Throws MachineError if it
/// cannot be instantiated.
std::unique_ptr<GpuGraph> make_cuda_graph(cudaGraph_t graph, const Stream& stream);

}  // namespace furlong
