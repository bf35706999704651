// Softmax attention on GPUs: forward, document boundaries. bfloat16 uses tensor cores; float32 and float64 use fused
// multiply-adds.
#include "framework/ops/attention/softmax/cuda/forward_fma.cuh"
#include "framework/ops/attention/softmax/cuda/forward_mma.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int scan_threads = 256, scan_items = 8;

/// bounds[0, b, i] = first token of the document of token i, bounds[1, b, i] = one past its last token. Block (b, 0)
/// walks a sequence forward and computes the former: a running maximum of document starts. Block (b, 1) walks it
/// backward and mirrors this.
__global__ void __launch_bounds__(scan_threads)
    document_bounds_kernel(const std::int32_t* documents, std::int32_t* bounds, std::int64_t batch, std::int64_t n) {
  FURLONG_SHARED(int, warp_last, [scan_threads / 32]);
  const std::int64_t sequence = blockIdx.x;
  const bool backward = blockIdx.y == 1;
  const std::int32_t* const ids = documents + sequence * n;
  std::int32_t* const target = bounds + ((backward ? batch : 0) + sequence) * n;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int carried = 0;  // start of the last document of all tokens before this round
  for (std::int64_t base = 0; base < n; base += scan_threads * scan_items) {
    const std::int64_t first = base + thread * scan_items;
    std::uint32_t begins = 0;
    int last = -1;
    FURLONG_UNROLL
    for (int e = 0; e < scan_items; ++e) {
      const std::int64_t i = first + e, here = backward ? n - 1 - i : i, before = backward ? here + 1 : here - 1;
      if (i >= n || (i > 0 && ids[here] == ids[before])) continue;
      begins |= 1u << e;
      last = static_cast<int>(i);
    }
    FURLONG_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(full_warp, last, step);
      if (lane >= step && other > last) last = other;
    }
    if (lane == 31) warp_last[warp] = last;
    int begin = __shfl_up_sync(full_warp, last, 1);  // for the tokens before this thread's
    if (lane == 0) begin = -1;
    __syncthreads();
    int all = carried;
    begin = begin > carried ? begin : carried;
    FURLONG_UNROLL
    for (int w = 0; w < scan_threads / 32; ++w) {
      const int other = warp_last[w];
      if (w < warp && other > begin) begin = other;
      all = other > all ? other : all;
    }
    carried = all;
    FURLONG_UNROLL
    for (int e = 0; e < scan_items; ++e) {
      const std::int64_t i = first + e;
      if (i >= n) continue;
      if ((begins >> e) & 1) begin = static_cast<int>(i);
      if (backward) {
        target[n - 1 - i] = static_cast<std::int32_t>(n - begin);
      } else {
        target[i] = begin;
      }
    }
    __syncthreads();  // the next round overwrites warp_last
  }
}

template <int width>
void forward_mma(const Stream& stream, const SoftmaxProblem<Bf16>& p, unsigned pairs) {
  const std::int64_t blocks = ceil_div<std::int64_t>(p.n_query, ForwardTiles<width>::queries);
  launch(stream, softmax_forward_mma<width>, grid_blocks(pairs * blocks, 1), mma_threads, ForwardTiles<width>::bytes,
         p);
}

template <class T, int width>
void forward_fma(const Stream& stream, const SoftmaxProblem<T>& p, unsigned pairs) {
  const std::int64_t blocks = ceil_div<std::int64_t>(p.n_query, fma_rows);
  const dim3 grid(grid_blocks(pairs * blocks, 1), static_cast<unsigned>(ceil_div(p.d_value_width, width)));
  launch(stream, softmax_forward_fma<T, width>, grid, fma_threads, fma_forward_bytes<T>, p);
}

void forward(const Stream& stream, const SoftmaxAttentionArguments& arguments) {
  const AttentionShape& shape = arguments.shape;
  if (shape.output().elements() == 0) return;
  find_document_bounds(stream, arguments);
  const auto pairs = static_cast<unsigned>(shape.batch * shape.n_heads);
  const int width = padded_head_width(shape, {64, 128, 256});
  with_gpu_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    const SoftmaxProblem<T> p = problem_of<T>(arguments);
    if constexpr (std::is_same_v<T, Bf16>) {
      width == 64    ? forward_mma<64>(stream, p, pairs)
      : width == 128 ? forward_mma<128>(stream, p, pairs)
                     : forward_mma<256>(stream, p, pairs);
    } else {
      width == 64 ? forward_fma<T, 64>(stream, p, pairs) : forward_fma<T, fma_columns<T>(128)>(stream, p, pairs);
    }
  });
}

const GpuKernelRegistration forward_registration{softmax_attention_forward_gpu, &forward};

}  // namespace

void find_document_bounds(const Stream& stream, const SoftmaxAttentionArguments& arguments) {
  if (!arguments.mask.documents.defined()) return;
  const std::int64_t batch = arguments.shape.batch, n = arguments.shape.n_query;
  launch(stream, document_bounds_kernel, dim3(static_cast<unsigned>(batch), 2), scan_threads, 0,
         gpu_data<std::int32_t>(arguments.mask.documents), gpu_data<std::int32_t>(arguments.boundaries), batch, n);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
