#include "framework/cuda/kernels/kernel.h"
#include "framework/ops/attention/positions/document_positions_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int max_threads = 1024, tokens_of_thread = 4;

/// One block per row, in tiles of tokens: a token's position is its distance from the latest start of a document, found
/// by a maximum scan.
__global__ void __launch_bounds__(max_threads)
    document_positions_kernel(const std::int32_t* documents, std::int32_t* positions, std::int64_t n) {
  FURLONG_SHARED(std::int32_t, warp_latest, [max_threads / 32]);
  documents += blockIdx.x * n;
  positions += blockIdx.x * n;
  const int lane = lane_index(), warp = warp_index();
  std::int32_t carried = 0;  // start of the document that continues into this tile
  for (std::int64_t tile = 0; tile < n; tile += std::int64_t{blockDim.x} * tokens_of_thread) {
    const std::int64_t first = tile + std::int64_t{threadIdx.x} * tokens_of_thread;
    std::int32_t latest[tokens_of_thread], own = -1;
    FURLONG_UNROLL
    for (int i = 0; i < tokens_of_thread; ++i) {
      const std::int64_t t = first + i;
      if (t < n && (t == 0 || documents[t] != documents[t - 1])) own = static_cast<std::int32_t>(t);
      latest[i] = own;
    }
    FURLONG_UNROLL
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::int32_t before = __shfl_up_sync(full_warp, own, step);
      if (lane >= static_cast<int>(step)) own = gpu_max(own, before);
    }
    if (lane == 31) warp_latest[warp] = own;
    const std::int32_t of_lanes_before = __shfl_up_sync(full_warp, own, 1);
    __syncthreads();
    std::int32_t reaching = carried, next = carried;
    for (int i = 0; i < warps_in_block(); ++i) {
      const std::int32_t of_warp = warp_latest[i];
      if (i < warp) reaching = gpu_max(reaching, of_warp);
      next = gpu_max(next, of_warp);
    }
    if (lane > 0) reaching = gpu_max(reaching, of_lanes_before);
    FURLONG_UNROLL
    for (int i = 0; i < tokens_of_thread; ++i) {
      if (first + i < n) positions[first + i] = static_cast<std::int32_t>(first + i) - gpu_max(reaching, latest[i]);
    }
    carried = next;
    __syncthreads();  // the next tile overwrites warp_latest
  }
}

}  // namespace

void document_positions(const Stream& stream, const Tensor& documents, const Tensor& positions) {
  const std::int64_t batch = documents.extent(0), n = documents.extent(1);
  if (batch == 0 || n == 0) return;
  const unsigned threads = n <= 256 ? 64 : n <= 1024 ? 256 : max_threads;
  launch(stream, document_positions_kernel, static_cast<unsigned>(batch), threads, 0, gpu_data<std::int32_t>(documents),
         gpu_data<std::int32_t>(positions), n);
}

const GpuKernelRegistration document_positions_registration{document_positions_gpu, &document_positions};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
