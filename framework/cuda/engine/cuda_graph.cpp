#include "framework/cuda/engine/cuda_graph.h"

#include "framework/cuda/engine/cuda_errors.h"
#include "framework/cuda/engine/queue.h"

namespace furlong {
namespace {

class CudaGraph final : public GpuGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void replay(const Stream& stream) override {
    check_cuda(cudaGraphLaunch(executable_, static_cast<cudaStream_t>(gpu_queue(stream))), "replaying recorded work",
               stream.device.index);
  }

 private:
  cudaGraphExec_t executable_;
};

}  // namespace

std::unique_ptr<GpuGraph> make_cuda_graph(cudaGraph_t graph, const Stream& stream) {
  cudaGraphExec_t executable = nullptr;
  std::size_t nodes = 0;
  cudaError_t made = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (made == cudaSuccess && nodes > 0) made = cudaGraphInstantiate(&executable, graph, 0);
  auto result = executable ? std::make_unique<CudaGraph>(executable) : nullptr;
  // Takes the graph's memory on the device now, while a lack of it is still a refusal to record.
  if (result) made = cudaGraphUpload(executable, static_cast<cudaStream_t>(gpu_queue(stream)));
  cudaGraphDestroy(graph);
  check_cuda(made, "instantiating a graph of recorded work", stream.device.index);
  return result;
}

}  // namespace furlong
