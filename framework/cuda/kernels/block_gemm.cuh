#pragma once
// Products of small matrices by one block: tiles in shared or global memory. Included after kernel.h.
//
// float32 operands are split into bfloat16 parts (the nearest bfloat16, the nearest to the remainder, ...) and
// multiplied on tensor cores with float32 sums. With two parts and three products the error is 2^-17 of the largest
// terms. With three parts and six products it is that of float32, which tensor cores do not keep over many terms,
// because they truncate: each step of 16 terms is summed from zero, and the steps are added in float32. float64 is
// multiplied directly; only tests use it.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

/// A matrix with any strides: element (i, j) is data[i * row + j * column].
template <class T>
struct BlockMatrix {
  const T* data;
  std::int64_t row, column;
};
/// Returns a row-major matrix; rows start `row` elements apart.
template <class T>
__device__ inline BlockMatrix<T> by_rows(const T* data, std::int64_t row) {
  return {data, row, 1};
}
/// Returns the transpose of the matrix that by_rows() returns, in the same memory.
template <class T>
__device__ inline BlockMatrix<T> by_columns(const T* data, std::int64_t row) {
  return {data, 1, row};
}

/// Where a product is written: target = product, or, if `accumulate`, target = target · factor + product. The target is
/// row-major; rows start `row` elements apart.
template <class T>
struct BlockTarget {
  T* data;
  std::int64_t row;
  bool accumulate = false;
  /// One factor per row, applied to the old values of target and `lost`; null: 1.
  const T* factor = nullptr;
  /// The rounding errors of earlier additions (Kahan 1965), in the layout of the target: subtracted from the product,
  /// then updated. null: no compensation. Requires `accumulate`.
  T* lost = nullptr;

  /// Writes element (i, j) of the product.
  __device__ void put(int i, int j, T value) const {
    const std::int64_t at = i * row + j;
    if (!accumulate) {
      data[at] = value;
      return;
    }
    const T by = factor ? factor[i] : T(1), before = data[at] * by;
    if (!lost) {
      data[at] = before + value;
      return;
    }
    const T add = value - lost[at] * by, after = before + add;
    lost[at] = (after - before) - add;
    data[at] = after;
  }
};

namespace block_gemm_detail {

/// The bfloat16 parts of two numbers: one register with a pair for each part.
struct Parts {
  std::uint32_t high, middle, low;
};
__device__ inline Parts parts_of(float first, float second) {
  Parts parts;
  parts.high = pack_bf16(first, second);
  first -= low_bf16(parts.high);
  second -= high_bf16(parts.high);
  parts.middle = pack_bf16(first, second);
  parts.low = pack_bf16(first - low_bf16(parts.middle), second - high_bf16(parts.middle));
  return parts;
}
__device__ inline float element(const BlockMatrix<float>& matrix, int i, int j, int rows, int columns) {
  return i < rows && j < columns ? matrix.data[i * matrix.row + j * matrix.column] : 0.0f;
}

/// Computes rows i0 to i0 + 15 and columns j0 to j0 + 31 of the product [M, N] by one warp.
__device__ inline void warp_tile(int M, int N, int K, const BlockMatrix<float>& a, const BlockMatrix<float>& b,
                                 const BlockTarget<float>& target, bool three_parts, int i0, int j0) {
  const int g = lane_index() / 4, t = lane_index() % 4;
  float sums[4][4] = {};
  for (int k0 = 0; k0 < K; k0 += 16) {
    std::uint32_t a_high[4], a_middle[4], a_low[4];
    FURLONG_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int i = i0 + g + r % 2 * 8, k = k0 + 2 * t + r / 2 * 8;
      const Parts parts = parts_of(element(a, i, k, M, K), element(a, i, k + 1, M, K));
      a_high[r] = parts.high;
      a_middle[r] = parts.middle;
      a_low[r] = parts.low;
    }
    FURLONG_UNROLL
    for (int n = 0; n < 4; ++n) {
      if (j0 + n * 8 >= N) continue;
      std::uint32_t b_high[2], b_middle[2], b_low[2];
      FURLONG_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int k = k0 + 2 * t + r * 8, j = j0 + n * 8 + g;
        const Parts parts = parts_of(element(b, k, j, K, N), element(b, k + 1, j, K, N));
        b_high[r] = parts.high;
        b_middle[r] = parts.middle;
        b_low[r] = parts.low;
      }
      float step[4] = {};
      if (three_parts) {  // the small products first
        mma_m16n8k16(step, a_middle, b_middle);
        mma_m16n8k16(step, a_low, b_high);
        mma_m16n8k16(step, a_high, b_low);
      }
      mma_m16n8k16(step, a_middle, b_high);
      mma_m16n8k16(step, a_high, b_middle);
      mma_m16n8k16(step, a_high, b_high);
      FURLONG_UNROLL
      for (int r = 0; r < 4; ++r) sums[n][r] += step[r];
    }
  }
  FURLONG_UNROLL
  for (int n = 0; n < 4; ++n) {
    FURLONG_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int i = i0 + g + r / 2 * 8, j = j0 + n * 8 + 2 * t + r % 2;
      if (i < M && j < N) target.put(i, j, sums[n][r]);
    }
  }
}

}  // namespace block_gemm_detail

/// A product to compute: target [M, N] from a [M, K] · b [K, N].
template <class T>
struct BlockProduct {
  int M, N, K;
  BlockMatrix<T> a, b;
  BlockTarget<T> target;
};

/// Computes one product with all threads of a one-dimensional block. The operands must have been written before a
/// barrier; this function has none. `three_parts`: see the top of this file. a and b must not overlap the target. The
/// code is long, so a kernel should call it in few places.
template <class T>
__device__ inline void block_gemm(const BlockProduct<T>& product, bool three_parts) {
  const auto& [M, N, K, a, b, target] = product;
  if constexpr (sizeof(T) == 4) {
    const int columns = ceil_div(N, 32), tiles = ceil_div(M, 16) * columns;
    for (int tile = warp_index(); tile < tiles; tile += warps_in_block())
      block_gemm_detail::warp_tile(M, N, K, a, b, target, three_parts, tile / columns * 16, tile % columns * 32);
  } else {
    for (int at = block_thread(); at < M * N; at += static_cast<int>(blockDim.x)) {
      const int i = at / N, j = at % N;
      T sum = 0;
      for (int k = 0; k < K; ++k)
        sum = gpu_fma(a.data[i * a.row + k * a.column], b.data[k * b.row + j * b.column], sum);
      target.put(i, j, sum);
    }
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong
