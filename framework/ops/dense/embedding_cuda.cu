#include "framework/cuda/kernels/kernel.h"

#include <utility>

#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/dense/embedding_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {

// ---- forward ----

template <class T>
struct EmbeddingPointers {
  const std::int32_t* tokens;     // [batch, n], row stride token_stride
  const T *table, *places;        // places: position table, or null
  const std::int32_t* positions;  // [batch, n], or null: 0 ... n - 1 in each row
  T* output;
  std::int64_t n_tokens, n, token_stride, d, vocabulary, length;
  bool aligned;
};

/// One warp per token.
template <class T, int N>
__global__ void __launch_bounds__(256) embedding_kernel(EmbeddingPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, d = work.d;
  if (row >= work.n_tokens) return;
  const std::int64_t id = work.tokens[row / work.n * work.token_stride + row % work.n];
  const std::int64_t place = work.positions != nullptr ? work.positions[row] : row % work.n;
  const bool known = id >= 0 && id < work.vocabulary && (work.places == nullptr || (place >= 0 && place < work.length));
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * N; column < d; column += 32 * N) {
    Compute y[N], position[N];
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) y[i] = std::numeric_limits<Compute>::quiet_NaN();
    if (known) load_values<N>(work.table + id * d + column, work.aligned, y);
    if (known && work.places != nullptr) {
      load_values<N>(work.places + place * d + column, work.aligned, position);
      FURLONG_UNROLL
      for (int i = 0; i < N; ++i) y[i] += position[i];
    }
    store_values<N>(work.output + row * d + column, work.aligned, y);
  }
}

void embedding(const Stream& stream, const Tensor& tokens, const Tensor& token_table, const Tensor& places,
               const Tensor& positions, const Tensor& output) {
  if (output.elements() == 0) return;
  const std::int64_t d = token_table.extent(1), rows = tokens.elements();
  with_gpu_float_type(output.dtype(), "embedding", [&]<class T>(std::type_identity<T>) {
    EmbeddingPointers<T> work{gpu_data<std::int32_t>(tokens),
                              gpu_data<T>(token_table),
                              gpu_data<T>(places),
                              gpu_data<std::int32_t>(positions),
                              gpu_data<T>(output),
                              rows,
                              tokens.extent(1),
                              tokens.strides()[0],
                              d,
                              token_table.extent(0),
                              places.defined() ? places.extent(0) : 0,
                              false};
    work.aligned = all_aligned(work.table, work.places, work.output);
    with_vector_width<T>(d, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned rows_a_block = power_of_two_up_to(rows, 8);
      launch(stream, embedding_kernel<T, N>, grid_blocks(rows, rows_a_block), dim3(32, rows_a_block), 0, work);
    });
  });
}

// ---- gradient of a table ----
//
// Tokens are sorted by id, and by index within one id. One block sums each tile of 32 sorted tokens, regardless of
// their ids: a frequent id takes many blocks, rare ids share one. If an id continues past its tile, the tile in which
// it starts adds the partial sums afterwards, tile by tile. The bits therefore depend only on the ids.

using SortKey = unsigned long long;  // (id, token): all different, so that any sort is stable

/// The key of ids outside the table, which are sorted last, and of the padding of the last run.
inline constexpr SortKey no_id = 0xffffffffull << 32;
inline constexpr int sort_run = 1024;  // keys that one block sorts in shared memory
inline constexpr int tile_tokens = 32;

__device__ inline std::int64_t id_of(SortKey key) { return static_cast<std::int64_t>(key >> 32); }
__device__ inline std::int64_t token_of(SortKey key) { return static_cast<std::int64_t>(key & 0xffffffffull); }

/// Sorts each run of `run` consecutive keys. `run` is a power of two, twice the number of threads. Bitonic sort
/// (Batcher 1968).
__global__ void __launch_bounds__(sort_run / 2)
    sort_runs_kernel(const std::int32_t* ids, std::int64_t n, std::int64_t id_stride, std::int64_t rows,
                     std::int64_t table_rows, SortKey* sorted) {
  FURLONG_SHARED(SortKey, keys, [sort_run]);
  const int run = 2 * static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * run;
  for (int i = thread; i < run; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = first + i;
    const std::int64_t id = row < rows ? ids[row / n * id_stride + row % n] : -1;
    keys[i] = (id >= 0 && id < table_rows ? static_cast<SortKey>(id) << 32 : no_id) | static_cast<SortKey>(row);
  }
  for (int size = 2; size <= run; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int low = 2 * thread - (thread & (distance - 1)), high = low + distance;
      const SortKey a = keys[low], b = keys[high];
      if ((a > b) == ((low & size) == 0)) {
        keys[low] = b;
        keys[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < run; i += static_cast<int>(blockDim.x)) {
    if (first + i < rows) sorted[first + i] = keys[i];
  }
}

/// Merges pairs of sorted runs of `run` keys. Each key moves to its index in its own run plus the number of smaller
/// keys in the other run.
__global__ void __launch_bounds__(256)
    merge_runs_kernel(const SortKey* from, SortKey* to, std::int64_t rows, std::int64_t run) {
  const std::int64_t i = global_thread();
  if (i >= rows) return;
  const SortKey key = from[i];
  const std::int64_t pair = i / (2 * run) * (2 * run), own = i / run * run, other = own == pair ? pair + run : pair;
  std::int64_t low = gpu_min(other, rows), high = gpu_min(other + run, rows);
  const std::int64_t other_first = low;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (from[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  to[pair + (i - own) + (low - other_first)] = key;
}

/// Returns the sorted keys of all ids, in one of the two buffers.
const SortKey* sort_ids(const Stream& stream, const Tensor& ids, std::int64_t table_rows, SortKey* keys,
                        SortKey* other) {
  const std::int64_t rows = ids.elements();
  std::int64_t run = 2 * 32 * power_of_two_up_to(ceil_div<std::int64_t>(rows, 64), sort_run / 64);
  launch(stream, sort_runs_kernel, grid_blocks(rows, run), static_cast<unsigned>(run / 2), 0,
         gpu_data<std::int32_t>(ids), ids.extent(1), ids.strides()[0], rows, table_rows, keys);
  for (; run < rows; run *= 2) {
    launch(stream, merge_runs_kernel, grid_blocks(rows, 256), 256, 0, keys, other, rows, run);
    std::swap(keys, other);
  }
  return keys;
}

template <class T>
struct TableGradientPointers {
  using Compute = gpu_compute_t<T>;
  const SortKey* sorted;  // [rows]
  const T* d_output;      // [rows, d]
  Compute* d_table;       // [table rows, d], added to
  Compute* ends;          // [tiles, 2, d]: sums that started in an earlier tile, and sums that continue in the next
  std::int64_t rows, d;
  bool aligned;
};

template <int N, class T>
__device__ inline void add_values(T* address, bool aligned, const T (&values)[N]) {
  T sum[N];
  load_values<N>(address, aligned, sum);
  FURLONG_UNROLL
  for (int i = 0; i < N; ++i) sum[i] += values[i];
  store_values<N>(address, aligned, sum);
}

/// One tile for each blockIdx.x, one range of columns for each blockIdx.y.
template <class T, int N>
__global__ void __launch_bounds__(128) sum_tiles_kernel(TableGradientPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t tile = blockIdx.x, first = tile * tile_tokens, last = gpu_min(first + tile_tokens, work.rows),
                     d = work.d;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (column >= d) return;
  Compute* ends = work.ends + tile * 2 * d + column;
  Compute sum[N] = {}, d_y[N];
  bool from_before = first > 0 && id_of(work.sorted[first - 1]) == id_of(work.sorted[first]);
  for (std::int64_t i = first; i < last; ++i) {
    const SortKey key = work.sorted[i];
    if (id_of(key) == id_of(no_id)) return;  // only invalid ids follow
    load_values<N>(work.d_output + token_of(key) * d + column, work.aligned, d_y);
    FURLONG_UNROLL
    for (int k = 0; k < N; ++k) sum[k] += d_y[k];
    const bool continues = i + 1 < work.rows && id_of(work.sorted[i + 1]) == id_of(key);
    if (continues && i + 1 < last) continue;
    if (from_before) {
      store_values<N>(ends, work.aligned, sum);
    } else if (continues) {
      store_values<N>(ends + d, work.aligned, sum);
    } else {
      add_values<N>(work.d_table + id_of(key) * d + column, work.aligned, sum);
    }
    from_before = false;
    FURLONG_UNROLL
    for (int k = 0; k < N; ++k) sum[k] = 0;
  }
}

/// Completes the sums that continue past their tile. The tile in which a sum starts adds it.
template <class T, int N>
__global__ void __launch_bounds__(128) join_tiles_kernel(TableGradientPointers<T> work) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t tile = blockIdx.x, d = work.d, next = (tile + 1) * tile_tokens;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (column >= d || next >= work.rows) return;
  const std::int64_t id = id_of(work.sorted[next - 1]), begin = tile * tile_tokens;
  if (id == id_of(no_id) || id_of(work.sorted[next]) != id) return;
  if (tile > 0 && id_of(work.sorted[begin - 1]) == id) return;  // the sum started in an earlier tile
  Compute sum[N], part[N];
  load_values<N>(work.ends + (2 * tile + 1) * d + column, work.aligned, sum);
  for (std::int64_t i = next; i < work.rows && id_of(work.sorted[i]) == id; i += tile_tokens) {
    load_values<N>(work.ends + i / tile_tokens * 2 * d + column, work.aligned, part);
    FURLONG_UNROLL
    for (int k = 0; k < N; ++k) sum[k] += part[k];
  }
  add_values<N>(work.d_table + id * d + column, work.aligned, sum);
}

void embedding_d_rows(const Stream& stream, const Tensor& ids, const Tensor& d_output, const Tensor& d_table) {
  const std::int64_t rows = ids.elements(), d = d_table.extent(1), tiles = ceil_div<std::int64_t>(rows, tile_tokens);
  if (rows == 0 || d == 0) return;
  require(rows <= 0xffffffff && d_table.extent(0) <= 0x7fffffff,
          "embedding: {} tokens or {} table rows exceed the kernel's limits", rows, d_table.extent(0));
  // Returned to the arena at the end of this function; later work on the stream may reuse the memory.
  const Tensor buffers =
      Tensor::empty({2 * rows * static_cast<std::int64_t>(sizeof(SortKey))}, DType::uint8, stream.device);
  SortKey* keys = reinterpret_cast<SortKey*>(gpu_data<std::uint8_t>(buffers));
  const SortKey* sorted = sort_ids(stream, ids, d_table.extent(0), keys, keys + rows);
  const Tensor ends = Tensor::empty({tiles, 2, d}, d_table.dtype(), stream.device);
  with_gpu_float_type(d_output.dtype(), "embedding", [&]<class T>(std::type_identity<T>) {
    using Compute = gpu_compute_t<T>;
    TableGradientPointers<T> work{
        sorted, gpu_data<T>(d_output), gpu_data<Compute>(d_table), gpu_data<Compute>(ends), rows, d, false};
    work.aligned = all_aligned(work.d_output, work.d_table, work.ends);
    with_vector_width<T>(d, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(d, 32 * N), 4);
      const std::int64_t ranges = ceil_div<std::int64_t>(d, static_cast<std::int64_t>(threads) * N);
      require(ranges <= 65535, "embedding: {} columns exceed the kernel's limit", d);
      const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ranges));
      launch(stream, sum_tiles_kernel<T, N>, grid, threads, 0, work);
      launch(stream, join_tiles_kernel<T, N>, grid, threads, 0, work);
    });
  });
}

// ---- gradient of the positions 0 ... n - 1 ----

/// d_positions [n, d] += Σ_b d_output[b, n, d], as rows of n·d numbers.
template <class T, int N>
__global__ void __launch_bounds__(128) sum_positions_kernel(const T* d_output, gpu_compute_t<T>* d_positions,
                                                            std::int64_t batch, std::int64_t elements, bool aligned) {
  using Compute = gpu_compute_t<T>;
  const std::int64_t at = global_thread() * N;
  if (at >= elements) return;
  Compute sum[N], d_y[N];
  load_values<N>(d_positions + at, aligned, sum);
  for (std::int64_t b = 0; b < batch; ++b) {
    load_values<N>(d_output + b * elements + at, aligned, d_y);
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) sum[i] += d_y[i];
  }
  store_values<N>(d_positions + at, aligned, sum);
}

void embedding_d_positions(const Stream& stream, const Tensor& d_output, const Tensor& d_positions) {
  const std::int64_t batch = d_output.extent(0), elements = d_positions.elements();
  if (elements == 0) return;
  with_gpu_float_type(d_output.dtype(), "embedding", [&]<class T>(std::type_identity<T>) {
    const T* from = gpu_data<T>(d_output);
    auto* to = gpu_data<gpu_compute_t<T>>(d_positions);
    with_vector_width<T>(elements, [&]<int N>(std::integral_constant<int, N>) {
      launch(stream, sum_positions_kernel<T, N>, grid_blocks(elements, 128 * N), 128, 0, from, to, batch, elements,
             all_aligned(from, to));
    });
  });
}

const GpuKernelRegistration embedding_registration{embedding_gpu, &embedding};
const GpuKernelRegistration embedding_d_rows_registration{embedding_d_rows_gpu, &embedding_d_rows};
const GpuKernelRegistration embedding_d_positions_registration{embedding_d_positions_gpu, &embedding_d_positions};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
