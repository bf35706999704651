#pragma once
// Products of matrices in scratch, for all chunks of all heads in one launch. Included after kernel.h.
//
// Operands of float32 arithmetic are stored as bfloat16 parts (the nearest bfloat16, the nearest to the remainder,
// ...), split once by the kernel that computes them, and multiplied on tensor cores with float32 sums. With two parts
// and three products the error is 2^-17 of the largest terms, and that of tensor cores' sums, which truncate. With
// three parts and six products it is that of float32: each step of 16 terms is summed from zero, and the steps are
// added in float32. float64, for tests, is one part and multiplied directly.
#include "framework/cuda/kernels/kernel.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Rows of numbers as parts: part p of element i is data[p * plane + i].
template <class T>
struct Parts {
  using Part = std::conditional_t<sizeof(T) == 4, __nv_bfloat16, T>;
  Part* data;
  std::int64_t plane;
  int count;

  __device__ void put(std::int64_t at, T x) const {
    if constexpr (sizeof(T) == 4) {
      for (int p = 0; p < count; ++p) {
        const __nv_bfloat16 part = from_compute<__nv_bfloat16>(x);
        data[p * plane + at] = part;
        x -= to_compute(part);
      }
    } else {
      data[at] = x;
    }
  }
  /// Writes two neighbors; `at` is even.
  __device__ void put(std::int64_t at, T x, T y) const {
    if constexpr (sizeof(T) == 4) {
      FURLONG_UNROLL
      for (int p = 0; p < 3; ++p) {
        if (p == count) break;
        const std::uint32_t pair = pack_bf16(x, y);
        *reinterpret_cast<std::uint32_t*>(data + p * plane + at) = pair;
        x -= low_bf16(pair);
        y -= high_bf16(pair);
      }
    } else {
      data[at] = x;
      data[at + 1] = y;
    }
  }
  __device__ T get(std::int64_t at) const {
    T sum = 0;
    for (int p = count; p-- > 0;) sum += to_compute(data[p * plane + at]);
    return sum;
  }
};

/// The rows or columns of a product for chunk t: all of [0, size), those of the chunk, or those of the chunks from
/// t - before to t + after.
struct ProductAxis {
  bool whole;
  int size, before, after;

  /// Sets [begin, end). All borders are multiples of 16.
  __host__ __device__ void range(int t, int chunk, int chunks, int& begin, int& end) const {
    begin = whole ? 0 : gpu_max(t - before, 0) * chunk;
    end = whole ? size : gpu_min(t + after + 1, chunks) * chunk;
  }
  __host__ __device__ int longest(int chunk, int chunks) const {
    return whole ? size : gpu_min(before + after + 1, chunks) * chunk;
  }
};
/// Memory of an operand or a target: element (row, column) of head h and chunk t starts at
/// (heads > 0 ? h % heads : h) * head + clamp(t + shift, least, most) * slot + row * row_stride + column.
struct ProductPlace {
  std::int64_t head = 0, row = 0, slot = 0;
  int heads = 0, shift = 0, least = 0, most = 0;

  __device__ std::int64_t offset(int h, int t) const {
    return (heads > 0 ? h % heads : h) * head + gpu_min(gpu_max(t + shift, least), most) * slot;
  }
};

/// How operands are stored: a [M, K] or, transposed, [K, M]; b [K, N] or, transposed, [N, K].
enum class ProductLayout : std::uint8_t { plain, b_transposed, a_transposed };

/// target [M, N] = a [M, K] · b [K, N], for chunks [first, end) of every head.
template <class T>
struct Product {
  ProductAxis m, n, k;
  Parts<T> a, b;
  ProductPlace a_place, b_place, target_place;
  T* target;
  int chunk, chunks, first, end, tiles_n;
  /// If not null: [heads, chunks, 2], the part of k's rows that counts; other rows are not read.
  const int* k_rows;
};

inline constexpr int product_tile = 64, product_depth = 32, product_threads = 128;

/// The tile and ranges of a block. Grid: heads, chunks, tiles.
struct ProductBlock {
  int head, t, m_begin, m_end, n_begin, n_end, k_begin, k_end;

  template <class T>
  __device__ static ProductBlock of(const Product<T>& p) {
    ProductBlock block;
    block.head = static_cast<int>(blockIdx.x);
    block.t = p.first + static_cast<int>(blockIdx.y);
    p.m.range(block.t, p.chunk, p.chunks, block.m_begin, block.m_end);
    p.n.range(block.t, p.chunk, p.chunks, block.n_begin, block.n_end);
    p.k.range(block.t, p.chunk, p.chunks, block.k_begin, block.k_end);
    const int tile = static_cast<int>(blockIdx.z), tile_m = tile / p.tiles_n;
    block.m_begin += tile_m * product_tile;
    block.n_begin += (tile - tile_m * p.tiles_n) * product_tile;
    return block;
  }
};

/// Copies tiles of one operand to shared memory, one depth after another. Lines of memory run along k, or across k
/// (by_k). Each thread copies two vectors of each part.
template <int Order, bool by_k>
class ProductStage {
 public:
  static constexpr int lines = by_k ? product_depth : product_tile, width = by_k ? product_tile : product_depth,
                       stride = width + 8, vectors = width / 8, step = product_threads / vectors;
  static_assert(lines == 2 * step);

  /// Rows or columns [begin, end) of the operand, from depth k on.
  __device__ ProductStage(__nv_bfloat16* shared, const Parts<float>& parts, std::int64_t offset, std::int64_t row,
                          int begin, int end, int k)
      : plane_(parts.plane), row_(row), some_(parts.data), line_(block_thread() / vectors) {
    const int column = block_thread() % vectors * 8;
    shared_ = shared + line_ * stride + column;
    source_ =
        parts.data + offset + static_cast<std::int64_t>(line_ + (by_k ? k : begin)) * row + column + (by_k ? begin : k);
    along_ = by_k ? line_ + k : column + k;
    inside_ = by_k ? begin + column < end : begin + line_ < end;
    also_inside_ = by_k ? inside_ : begin + line_ + step < end;
  }
  /// Starts the copies of a tile; outside the operand and outside depths [low, high) they write zeros.
  __device__ void copy(int low, int high) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int at = along_ + (by_k ? half * step : 0);
      const bool inside = (half == 0 ? inside_ : also_inside_) && at >= low && at < high;
      const __nv_bfloat16* const source = inside ? source_ + half * step * row_ : some_;
      FURLONG_UNROLL
      for (int p = 0; p < Order; ++p)
        cp_async16(shared_ + (p * lines + half * step) * stride, source + p * plane_, inside ? 16 : 0);
    }
    along_ += product_depth;
    source_ += by_k ? product_depth * row_ : product_depth;
  }

 private:
  const std::int64_t plane_, row_;
  const __nv_bfloat16* const some_;
  const __nv_bfloat16* source_;
  __nv_bfloat16* shared_;
  const int line_;
  int along_;
  bool inside_, also_inside_;
};

/// One block computes a tile of 64 x 64, each of its four warps 32 x 32. Order: number of parts.
template <int Order, ProductLayout layout>
__global__ void __launch_bounds__(product_threads, Order > 2 ? 3 : 1)
    linear_attention_product_kernel(const Product<float> p) {
  using StageA = ProductStage<Order, layout == ProductLayout::a_transposed>;
  using StageB = ProductStage<Order, layout != ProductLayout::b_transposed>;
  FURLONG_SHARED(__nv_bfloat16, a, [Order * StageA::lines * StageA::stride]);
  FURLONG_SHARED(__nv_bfloat16, b, [Order * StageB::lines * StageB::stride]);
  const ProductBlock block = ProductBlock::of(p);
  if (block.m_begin >= block.m_end || block.n_begin >= block.n_end) return;
  int low = block.k_begin, high = block.k_end;
  if (p.k_rows) {
    const int* const wanted = p.k_rows + (static_cast<std::int64_t>(block.head) * p.chunks + block.t) * 2;
    low = gpu_max(low, wanted[0]);
    high = gpu_min(high, wanted[1]);
  }
  StageA stage_a(a, p.a, p.a_place.offset(block.head, block.t), p.a_place.row, block.m_begin, block.m_end,
                 block.k_begin);
  StageB stage_b(b, p.b, p.b_place.offset(block.head, block.t), p.b_place.row, block.n_begin, block.n_end,
                 block.k_begin);
  const int lane = lane_index(), eighth = lane % 8, matrix = lane / 8;
  const int warp_m = warp_index() / 2 * 32, warp_n = warp_index() % 2 * 32;
  const bool works = block.m_begin + warp_m < block.m_end && block.n_begin + warp_n < block.n_end;
  float sums[2][4][4] = {};
  for (int k0 = block.k_begin; k0 < high; k0 += product_depth) {
    stage_a.copy(low, high);
    stage_b.copy(low, high);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    if (works) {
      FURLONG_UNROLL
      for (int k = 0; k < product_depth; k += 16) {
        std::uint32_t of_a[Order][2][4];
        FURLONG_UNROLL
        for (int part = 0; part < Order; ++part) {
          FURLONG_UNROLL
          for (int i = 0; i < 2; ++i) {
            if constexpr (layout == ProductLayout::a_transposed)
              ldmatrix_x4_transposed(
                  of_a[part][i], a + (part * StageA::lines + k + matrix / 2 * 8 + eighth) * StageA::stride + warp_m +
                                     i * 16 + matrix % 2 * 8);
            else
              ldmatrix_x4(of_a[part][i],
                          a + (part * StageA::lines + warp_m + i * 16 + matrix % 2 * 8 + eighth) * StageA::stride + k +
                              matrix / 2 * 8);
          }
        }
        FURLONG_UNROLL
        for (int j = 0; j < 4; j += 2) {
          std::uint32_t of_b[Order][4];
          FURLONG_UNROLL
          for (int part = 0; part < Order; ++part) {
            if constexpr (layout != ProductLayout::b_transposed)
              ldmatrix_x4_transposed(
                  of_b[part], b + (part * StageB::lines + k + matrix % 2 * 8 + eighth) * StageB::stride + warp_n +
                                  j * 8 + matrix / 2 * 8);
            else
              ldmatrix_x4(of_b[part],
                          b + (part * StageB::lines + warp_n + j * 8 + matrix / 2 * 8 + eighth) * StageB::stride + k +
                              matrix % 2 * 8);
          }
          constexpr bool from_zero = Order > 2;
          float step[2][2][4] = {};
          FURLONG_UNROLL
          for (int sum = Order - 1; sum >= 0; --sum) {  // the small products first
            FURLONG_UNROLL
            for (int part = 0; part <= sum; ++part) {
              FURLONG_UNROLL
              for (int i = 0; i < 2; ++i) {
                const std::uint32_t first[2] = {of_b[sum - part][0], of_b[sum - part][1]},
                                    second[2] = {of_b[sum - part][2], of_b[sum - part][3]};
                mma_m16n8k16(from_zero ? step[i][0] : sums[i][j], of_a[part][i], first);
                mma_m16n8k16(from_zero ? step[i][1] : sums[i][j + 1], of_a[part][i], second);
              }
            }
          }
          if constexpr (from_zero) {
            FURLONG_UNROLL
            for (int i = 0; i < 2; ++i) {
              FURLONG_UNROLL
              for (int r = 0; r < 8; ++r) sums[i][j + r / 4][r % 4] += step[i][r / 4][r % 4];
            }
          }
        }
      }
    }
    __syncthreads();
  }
  if (!works) return;
  float* const target = p.target + p.target_place.offset(block.head, block.t);
  FURLONG_UNROLL
  for (int i = 0; i < 2; ++i) {
    FURLONG_UNROLL
    for (int j = 0; j < 4; ++j) {
      FURLONG_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int row = block.m_begin + warp_m + i * 16 + r * 8 + lane / 4,
                  column = block.n_begin + warp_n + j * 8 + lane % 4 * 2;
        if (row < block.m_end && column < block.n_end)
          store_vector<2>(target + row * p.target_place.row + column,
                          Vector<float, 2>{sums[i][j][2 * r], sums[i][j][2 * r + 1]});
      }
    }
  }
}

/// The same in float64, one element after another.
template <ProductLayout layout>
__global__ void __launch_bounds__(product_threads, 1) linear_attention_product_kernel_double(const Product<double> p) {
  const ProductBlock block = ProductBlock::of(p);
  const double *a = p.a.data + p.a_place.offset(block.head, block.t),
               *b = p.b.data + p.b_place.offset(block.head, block.t);
  int begin = block.k_begin, end = block.k_end;
  if (p.k_rows) {
    const int* const wanted = p.k_rows + (static_cast<std::int64_t>(block.head) * p.chunks + block.t) * 2;
    begin = gpu_max(begin, wanted[0]);
    end = gpu_min(end, wanted[1]);
  }
  for (int at = block_thread(); at < product_tile * product_tile; at += product_threads) {
    const int i = block.m_begin + at / product_tile, j = block.n_begin + at % product_tile;
    if (i >= block.m_end || j >= block.n_end) continue;
    double sum = 0;
    for (int k = begin; k < end; ++k)
      sum = gpu_fma(layout == ProductLayout::a_transposed ? a[k * p.a_place.row + i] : a[i * p.a_place.row + k],
                    layout == ProductLayout::b_transposed ? b[j * p.b_place.row + k] : b[k * p.b_place.row + j], sum);
    p.target[p.target_place.offset(block.head, block.t) + i * p.target_place.row + j] = sum;
  }
}

template <ProductLayout layout, class T>
void launch_product(const Stream& stream, Product<T> p, std::int64_t heads) {
  if (p.first >= p.end) return;
  p.tiles_n = ceil_div(p.n.longest(p.chunk, p.chunks), product_tile);
  const int tiles = ceil_div(p.m.longest(p.chunk, p.chunks), product_tile) * p.tiles_n;
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(p.end - p.first), static_cast<unsigned>(tiles)),
      threads(product_threads);
  if constexpr (sizeof(T) == 8)
    launch(stream, linear_attention_product_kernel_double<layout>, grid, threads, 0, p);
  else if (p.a.count == 2)
    launch(stream, linear_attention_product_kernel<2, layout>, grid, threads, 0, p);
  else
    launch(stream, linear_attention_product_kernel<3, layout>, grid, threads, 0, p);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
