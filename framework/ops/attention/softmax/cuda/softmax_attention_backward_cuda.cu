// Softmax attention on GPUs: backward.
#include "framework/ops/attention/softmax/cuda/backward_fma.cuh"
#include "framework/ops/attention/softmax/cuda/backward_mma.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int dot_threads = 256, lanes_per_row = 8;

/// row_dots[b, h, i] = Σ_f d_output[b, i, h, f] output[b, i, h, f], eight lanes each.
template <class T>
__global__ void __launch_bounds__(dot_threads) row_dots_kernel(const SoftmaxProblem<T> p) {
  using C = gpu_compute_t<T>;
  const std::int64_t rows = std::int64_t{p.batch} * p.n_query * p.n_heads, place = global_thread() / lanes_per_row;
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_row;
  // In memory order, heads fastest. All lanes take part in the shuffles.
  const std::int64_t row = place < rows ? place : rows - 1, token = row / p.n_heads;
  const int head = static_cast<int>(row % p.n_heads), i = static_cast<int>(token % p.n_query),
            sequence = static_cast<int>(token / p.n_query);
  const T* const output = p.output.head(sequence, head) + i * p.output.row_stride;
  const T* const d_output = p.d_output.head(sequence, head) + i * p.d_output.row_stride;
  constexpr int n = 16 / sizeof(T);
  C sum{0};
  for (int column = lane * n; column < p.d_value_width; column += lanes_per_row * n) {
    if (p.output.vectors && p.d_output.vectors) {
      const Vector<T, n> x = load_vector<n>(output + column), y = load_vector<n>(d_output + column);
      FURLONG_UNROLL
      for (int e = 0; e < n; ++e) sum = gpu_fma(to_compute(x[e]), to_compute(y[e]), sum);
    } else {
      for (int e = column; e < column + n && e < p.d_value_width; ++e)
        sum = gpu_fma(to_compute(output[e]), to_compute(d_output[e]), sum);
    }
  }
  FURLONG_UNROLL
  for (int step = lanes_per_row / 2; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
  if (lane == 0 && place < rows) p.row_dots[p.row(sequence, head, i)] = sum;
}

template <int width>
struct MmaBackward {
  static void query_gradient(const Stream& stream, const SoftmaxProblem<Bf16>& p) {
    const std::int64_t blocks =
        std::int64_t{p.batch} * p.n_heads * ceil_div(p.n_query, QueryGradientTiles<width>::queries);
    launch(stream, softmax_query_gradient_mma<width>, grid_blocks(blocks, 1), mma_threads,
           QueryGradientTiles<width>::bytes, p);
  }
  template <bool with_key, bool with_value>
  static void key_gradient(const Stream& stream, const SoftmaxProblem<Bf16>& p) {
    const std::int64_t blocks = std::int64_t{p.batch} * p.n_kv_heads * ceil_div(p.n_key, KeyGradientTiles<width>::keys);
    launch(stream, softmax_key_gradient_mma<width, with_key, with_value>, grid_blocks(blocks, 1), mma_threads,
           KeyGradientTiles<width>::bytes, p);
  }
};

template <class T, int width>
struct FmaBackward {
  static dim3 grid(std::int64_t heads, std::int64_t tokens, int columns) {
    return dim3(grid_blocks(heads * ceil_div<std::int64_t>(tokens, fma_rows), 1),
                static_cast<unsigned>(ceil_div(columns, width)));
  }
  static void query_gradient(const Stream& stream, const SoftmaxProblem<T>& p) {
    launch(stream, softmax_query_gradient_fma<T, width>,
           grid(std::int64_t{p.batch} * p.n_heads, p.n_query, p.d_key_width), fma_threads, fma_backward_bytes<T, 1>, p);
  }
  template <bool with_key, bool with_value>
  static void key_gradient(const Stream& stream, const SoftmaxProblem<T>& p) {
    const int columns = std::max(with_key ? p.d_key_width : 0, with_value ? p.d_value_width : 0);
    launch(stream, softmax_key_gradient_fma<T, width, with_key, with_value>,
           grid(std::int64_t{p.batch} * p.n_kv_heads, p.n_key, columns), fma_threads, fma_backward_bytes < T,
           with_key && with_value ? 2 : 1 >, p);
  }
};

/// d_query first, d_value last: if inputs are one variable, the first gradient overwrites and the others add to it.
template <class Kernels, bool together, class T>
void launch_gradients(const Stream& stream, const SoftmaxProblem<T>& p) {
  if (p.d_query.data && p.n_query > 0) Kernels::query_gradient(stream, p);
  if constexpr (together) {
    if (p.d_key.data || p.d_value.data) Kernels::template key_gradient<true, true>(stream, p);
  } else {
    if (p.d_key.data) Kernels::template key_gradient<true, false>(stream, p);
    if (p.d_value.data) Kernels::template key_gradient<false, true>(stream, p);
  }
}

void backward(const Stream& stream, const SoftmaxAttentionArguments& arguments,
              const SoftmaxAttentionGradients& gradients) {
  const AttentionShape& shape = arguments.shape;
  if (shape.batch == 0) return;
  const int width = padded_head_width(shape, {64, 128, 256});
  if (shape.n_query > 0) find_document_bounds(stream, arguments);
  with_gpu_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    using C = gpu_compute_t<T>;
    SoftmaxProblem<T> p = problem_of<T>(arguments);
    p.d_output = head_view<const T>(gradients.d_output);
    p.d_query = gradient_view<C>(gradients.d_query);
    p.d_key = gradient_view<C>(gradients.d_key);
    p.d_value = gradient_view<C>(gradients.d_value);
    p.row_dots = gpu_data<C>(gradients.row_dots);
    const std::int64_t rows = shape.batch * shape.n_query * shape.n_heads;
    if (rows > 0) launch(stream, row_dots_kernel<T>, grid_blocks(rows * lanes_per_row, dot_threads), dot_threads, 0, p);
    if constexpr (std::is_same_v<T, Bf16>) {
      width == 64    ? launch_gradients<MmaBackward<64>, true>(stream, p)
      : width == 128 ? launch_gradients<MmaBackward<128>, true>(stream, p)
                     : launch_gradients<MmaBackward<256>, false>(stream, p);
    } else {
      width == 64 ? launch_gradients<FmaBackward<T, 64>, sizeof(T) == 4>(stream, p)
                  : launch_gradients<FmaBackward<T, fma_columns<T>(128)>, false>(stream, p);
    }
  });
}

const GpuKernelRegistration backward_registration{softmax_attention_backward_gpu, &backward};

}  // namespace
}  // namespace FURLONG_GPU
}  // namespace furlong::ops
