#pragma once
// Tensor-core operands for the fused kernels of linear attention, in one or more parts of bfloat16, and products of
// tiles in shared memory.
//
// Order of 32 entries. A lane reads 8 neighboring entries of a row at once (16 bytes of bfloat16). So entry 8 t + 4 s
// + 2 h + e of a group of 32 goes to lane t (of the four that share a row) at place 16 s + 8 h + 2 t + e of the
// product. Columns of ω are stored in that order, and features of element-wise maps are numbered in it (`place`). All
// results leave the kernels in their original order.
#include "framework/cuda/kernels/exp2_fast.h"

// For loops whose unrolling would only make the program larger.
#ifdef __CUDACC__
#define FURLONG_ONE_BY_ONE _Pragma("unroll 1")
#else
#define FURLONG_ONE_BY_ONE
#endif

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr int fused_threads = 128, fused_warps = 4;
inline constexpr int fused_chunk = 64;           // tokens
inline constexpr int fused_tile = 64;            // features
inline constexpr int fused_ld = fused_tile + 8;  // for tiles [64, 64]: rows of ldmatrix start in different banks
using Bf16 = __nv_bfloat16;

/// Returns the entry of a group of 32 that is at `place` of a product, and the inverse.
__host__ __device__ constexpr int fused_entry(int place) {
  return 8 * ((place >> 1) & 3) + 2 * (place >> 3) + (place & 1);
}
__host__ __device__ constexpr int fused_place(int entry) {
  return 8 * ((entry >> 1) & 3) + 2 * (entry >> 3) + (entry & 1);
}

// ---- operands ----

/// Splits two numbers into `Parts` pairs of bfloat16 whose sum approximates them, the largest first.
template <int Parts>
__device__ __forceinline__ void split_pair(float low, float high, std::uint32_t (&words)[Parts]) {
  FURLONG_UNROLL
  for (int part = 0; part < Parts; ++part) {
    words[part] = pack_bf16(low, high);
    if (part + 1 < Parts) low -= low_bf16(words[part]), high -= high_bf16(words[part]);
  }
}

template <int Parts>
struct OperandA {
  std::uint32_t parts[Parts][4];
  __device__ __forceinline__ void set(int word, float low, float high) {
    std::uint32_t words[Parts];
    split_pair<Parts>(low, high, words);
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part) parts[part][word] = words[part];
  }
  /// Takes columns [16 k, 16 k + 16) of accumulators: both layouts are the same.
  template <int N>
  __device__ __forceinline__ void from_accumulators(const float (&sums)[N][4], int k) {
    set(0, sums[2 * k][0], sums[2 * k][1]);
    set(1, sums[2 * k][2], sums[2 * k][3]);
    set(2, sums[2 * k + 1][0], sums[2 * k + 1][1]);
    set(3, sums[2 * k + 1][2], sums[2 * k + 1][3]);
  }
};
template <int Parts>
struct OperandB {
  std::uint32_t parts[Parts][2];
  __device__ __forceinline__ void set(int word, float low, float high) {
    std::uint32_t words[Parts];
    split_pair<Parts>(low, high, words);
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part) parts[part][word] = words[part];
  }
};

/// sums += a b, the smallest parts first. Products of two lower parts are below the precision and omitted.
template <int A, int B>
__device__ __forceinline__ void multiply(float (&sums)[4], const OperandA<A>& a, const OperandB<B>& b) {
  constexpr int most = A > B ? A : B;
  FURLONG_UNROLL
  for (int i = A - 1; i >= 0; --i) {
    FURLONG_UNROLL
    for (int j = B - 1; j >= 0; --j) {
      if (i + j < most) mma_m16n8k16(sums, a.parts[i], b.parts[j]);
    }
  }
}

/// Row offset of this lane for ldmatrix, in a block of 16 × 16 with rows `ld` apart. `by_rows`: for operand A from rows
/// of the product, or, transposed on load, for two operands B from rows that are summed over. `by_columns`: for two
/// operands B from columns of the product, or, transposed on load, for operand A from rows that are summed over.
__device__ __forceinline__ int by_rows_offset(int ld) {
  const int lane = lane_index();
  return (lane & 15) * ld + (lane >> 4) * 8;
}
__device__ __forceinline__ int by_columns_offset(int ld) {
  const int lane = lane_index();
  return ((lane >> 4) * 8 + (lane & 7)) * ld + ((lane >> 3) & 1) * 8;
}

/// A tile of rows in shared memory, as `Parts` planes of bfloat16.
template <int Parts>
struct Tile {
  Bf16* data;
  int ld, plane;

  __device__ __forceinline__ OperandA<Parts> a(int row, int column) const {
    OperandA<Parts> operand;
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part)
      ldmatrix_x4(operand.parts[part], data + part * plane + row * ld + column + by_rows_offset(ld));
    return operand;
  }
  /// Returns operand A for the product's rows from `column` on, summed over rows [row, row + 16).
  __device__ __forceinline__ OperandA<Parts> a_transposed(int row, int column) const {
    OperandA<Parts> operand;
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part)
      ldmatrix_x4_transposed(operand.parts[part], data + part * plane + row * ld + column + by_columns_offset(ld));
    return operand;
  }
  /// Returns operands B for the product's columns [row, row + 16), summed from `column` on.
  __device__ __forceinline__ void b(int row, int column, OperandB<Parts> (&operands)[2]) const {
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part) {
      std::uint32_t words[4];
      ldmatrix_x4(words, data + part * plane + row * ld + column + by_columns_offset(ld));
      hand_out(words, part, operands);
    }
  }
  /// Returns operands B for the product's columns [column, column + 16), summed over rows [row, row + 16).
  __device__ __forceinline__ void b_transposed(int row, int column, OperandB<Parts> (&operands)[2]) const {
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part) {
      std::uint32_t words[4];
      ldmatrix_x4_transposed(words, data + part * plane + row * ld + column + by_rows_offset(ld));
      hand_out(words, part, operands);
    }
  }
  /// Returns one entry, the sum of all its parts.
  __device__ __forceinline__ float value(int row, int column) const {
    float sum = 0;
    FURLONG_UNROLL
    for (int part = Parts - 1; part >= 0; --part) sum += to_compute(data[part * plane + row * ld + column]);
    return sum;
  }
  /// Stores two neighboring entries of a row; `column` is even.
  __device__ __forceinline__ void put(int row, int column, float low, float high) const {
    std::uint32_t words[Parts];
    split_pair<Parts>(low, high, words);
    FURLONG_UNROLL
    for (int part = 0; part < Parts; ++part) put_word(row, column, part, words[part]);
  }
  __device__ __forceinline__ void put_word(int row, int column, int part, std::uint32_t word) const {
    *reinterpret_cast<std::uint32_t*>(data + part * plane + row * ld + column) = word;
  }

 private:
  __device__ __forceinline__ static void hand_out(const std::uint32_t (&words)[4], int part,
                                                  OperandB<Parts> (&operands)[2]) {
    operands[0].parts[part][0] = words[0], operands[0].parts[part][1] = words[1];
    operands[1].parts[part][0] = words[2], operands[1].parts[part][1] = words[3];
  }
};

template <int N>
__device__ __forceinline__ void clear(float (&sums)[N][4]) {
  FURLONG_UNROLL
  for (int n = 0; n < N; ++n) {
    FURLONG_UNROLL
    for (int e = 0; e < 4; ++e) sums[n][e] = 0.0f;
  }
}

/// Maximum over the four lanes that share a row of accumulators.
__device__ __forceinline__ float quad_max(float x) {
  x = gpu_max(x, __shfl_xor_sync(full_warp, x, 1));
  return gpu_max(x, __shfl_xor_sync(full_warp, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(full_warp, x, 1);
  return x + __shfl_xor_sync(full_warp, x, 2);
}

/// sums[f, c] += Σ_j weights[j, f] vectors[j, c] for features [own, own + 16) of the tile and columns [0, width) (at
/// most 64). Column 0 of extra_sums gets Σ_j weights[j, f] extra[j]. Called by all lanes.
template <int Parts>
__device__ __forceinline__ void add_outer_products(const Tile<Parts>& weights, const Tile<Parts>& vectors,
                                                   const float* extra, int own, int width, float (&sums)[8][4],
                                                   float (&extra_sums)[4]) {
  const int lane = lane_index(), g = lane >> 2, t = lane & 3;
  FURLONG_UNROLL
  for (int k = 0; k < fused_chunk; k += 16) {
    const OperandA<Parts> a = weights.a_transposed(k, own);
    FURLONG_UNROLL
    for (int n = 0; n < 8; n += 2) {
      if (8 * n >= width) continue;
      OperandB<Parts> b[2];
      vectors.b_transposed(k, 8 * n, b);
      multiply(sums[n], a, b[0]);
      multiply(sums[n + 1], a, b[1]);
    }
    OperandB<2> column;
    column.set(0, g == 0 ? extra[k + 2 * t] : 0.0f, g == 0 ? extra[k + 2 * t + 1] : 0.0f);
    column.set(1, g == 0 ? extra[k + 2 * t + 8] : 0.0f, g == 0 ? extra[k + 2 * t + 9] : 0.0f);
    multiply(extra_sums, a, column);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
