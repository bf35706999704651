#pragma once
// Products of tiles by fused multiply-adds, for softmax attention in float32 and float64. They are exact to the type's
// own rounding. Tensor cores are not: a product of float32 numbers, each split into two bfloat16 parts, loses the
// digits below 2^-16, and scores are exponents.
//
// A block has 16 × 16 threads and computes 64 × 64 scores, 4 × 4 per thread: rows 4 (thread / 16) + i, columns 4
// (thread % 16) + j. Operands pass through shared memory in pieces, so that its size does not depend on the head width.
#include "framework/ops/attention/softmax/cuda/gpu.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr int fma_threads = 256, fma_rows = 64, fma_stride = fma_rows + 4, fma_piece = 32;
/// Returns the columns of sums that a thread's registers hold, for a head width: 4 × 4 elements are 64 columns. For
/// wider heads the y index of a block selects the columns; each such block recomputes the scores.
template <class T>
constexpr int fma_columns(int head_width) {
  return sizeof(T) == 4 && head_width > 64 ? 128 : 64;
}
/// Elements of shared memory for one 64 × 64 tile: pieces of operands, or weights. Weights are transposed: row k holds
/// the weights of the k-th row that they are multiplied with.
inline constexpr int fma_tile_elements = fma_rows * fma_stride;

/// First row and column of the thread's 4 × 4 elements of a tile.
struct FmaPlace {
  int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
};

/// Rows of a head in global memory: `count` tokens from `first` on, at most 64. Rows and columns beyond read as 0.
template <class T>
struct FmaRows {
  const T* data;
  std::int64_t stride;
  int count;
  int columns;

  __device__ FmaRows(const HeadView<const T>& view, const T* head, int first, int n, int width)
      : data(head + first * view.row_stride), stride(view.row_stride), count(n), columns(width) {}
  __device__ T at(int row, int column) const {
    return row < count && column < columns ? data[row * stride + column] : T{0};
  }
};

/// Loads four consecutive elements; the address is 16-byte aligned.
template <class T>
__device__ __forceinline__ void load_four(T (&values)[4], const T* address) {
  constexpr int lanes = 16 / sizeof(T);
  FURLONG_UNROLL
  for (int i = 0; i < 4; i += lanes) {
    const Vector<T, lanes> vector = load_vector<lanes>(address + i);
    FURLONG_UNROLL
    for (int e = 0; e < lanes; ++e) values[i + e] = vector[e];
  }
}
/// Stores four consecutive elements, likewise.
template <class T>
__device__ __forceinline__ void store_four(T* address, const T (&values)[4]) {
  constexpr int lanes = 16 / sizeof(T);
  FURLONG_UNROLL
  for (int i = 0; i < 4; i += lanes) {
    Vector<T, lanes> vector;
    FURLONG_UNROLL
    for (int e = 0; e < lanes; ++e) vector[e] = values[i + e];
    store_vector(address + i, vector);
  }
}

/// sums[i][j] += Σ_f a[i, f] b[j, f]. Has a barrier before it first uses `pieces`.
template <class T>
__device__ __forceinline__ void add_row_products(T (&sums)[4][4], const FmaRows<T>& a, const FmaRows<T>& b, T* pieces,
                                                 const FmaPlace& place) {
  T *const a_piece = pieces, *const b_piece = pieces + fma_piece * fma_stride;
  for (int first = 0; first < a.columns; first += fma_piece) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < fma_rows * fma_piece; i += fma_threads) {
      const int row = i / fma_piece, column = i % fma_piece;
      a_piece[column * fma_stride + row] = a.at(row, first + column);
      b_piece[column * fma_stride + row] = b.at(row, first + column);
    }
    __syncthreads();
    const int depth = a.columns - first < fma_piece ? a.columns - first : fma_piece;
    FURLONG_UNROLL_TWICE
    for (int f = 0; f < depth; ++f) {
      T x[4], y[4];
      load_four(x, a_piece + f * fma_stride + place.row);
      load_four(y, b_piece + f * fma_stride + place.column);
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) sums[i][j] = gpu_fma(x[i], y[j], sums[i][j]);
      }
    }
  }
}

struct EveryRow {
  __device__ bool keeps(int) const { return true; }
};

/// sums[c][i][j] += Σ_k weights[k, i] b[k, first_column + 64 c + j], with zeros for rows of `b` that `kept` masks. If
/// `selecting`, a weight of 0 removes even values that are not finite. Has a barrier before it first uses `pieces`; all
/// weights must be written before the call.
template <bool selecting, class T, int chunks, class Kept>
__device__ __forceinline__ void add_weighted_rows(T (&sums)[chunks][4][4], const T* weights, const FmaRows<T>& b,
                                                  int first_column, const Kept& kept, T* pieces,
                                                  const FmaPlace& place) {
  FURLONG_UNROLL
  for (int c = 0; c < chunks; ++c) {
    if (first_column + c * 64 >= b.columns) continue;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < fma_rows * 64; i += fma_threads) {
      const int row = i / 64, column = i % 64;
      pieces[row * fma_stride + column] = kept.keeps(row) ? b.at(row, first_column + c * 64 + column) : T{0};
    }
    __syncthreads();
    const int depth = lesser(b.count, fma_rows);
    FURLONG_UNROLL_TWICE
    for (int k = 0; k < depth; ++k) {
      T x[4], y[4];
      load_four(x, weights + k * fma_stride + place.row);
      load_four(y, pieces + k * fma_stride + place.column);
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        FURLONG_UNROLL
        for (int j = 0; j < 4; ++j) {
          const T sum = gpu_fma(x[i], y[j], sums[c][i][j]);
          sums[c][i][j] = selecting && x[i] == T{0} ? sums[c][i][j] : sum;
        }
      }
    }
  }
}

/// Writes the 4 × 4 values of each thread to the tile in shared memory, transposed: value (row, column) to
/// weights[column][row].
template <class T>
__device__ __forceinline__ void store_weights(T* weights, const T (&values)[4][4], const FmaPlace& place) {
  FURLONG_UNROLL
  for (int j = 0; j < 4; ++j) {
    const T column[4] = {values[0][j], values[1][j], values[2][j], values[3][j]};
    store_four(weights + (place.column + j) * fma_stride + place.row, column);
  }
}

/// Overwrites or adds to rows [first, first + count) of a head's gradient, as the view says, with the block's sums
/// times `factor`. Columns start at `first_column`.
template <class T, int chunks>
__device__ __forceinline__ void store_gradient_rows(const GradientView& view, std::int64_t head, int first, int count,
                                                    int first_column, int columns, const T (&sums)[chunks][4][4],
                                                    T factor, const FmaPlace& place) {
  with_gradient<T>(view, head, [&](auto* rows) {
    FURLONG_UNROLL
    for (int i = 0; i < 4; ++i) {
      auto* const target = rows + (first + place.row + i) * view.row_stride;
      FURLONG_UNROLL
      for (int c = 0; c < chunks; ++c) {
        FURLONG_UNROLL
        for (int j = 0; j < 4; j += 2) {
          const int column = first_column + c * 64 + place.column + j;
          if (place.row + i < count && column < columns)
            store_pair(view, target + column, sums[c][i][j] * factor, sums[c][i][j + 1] * factor, column + 1 < columns);
        }
      }
    }
  });
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
