#pragma once
// Shared by kernels that process rows: vector accesses where possible, and sums over blocks of rows.
#include "framework/cuda/kernels/kernel.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Number of elements of T in one 16-byte access.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));

/// Loads N consecutive elements, converted to the compute type, into `values`. `aligned`: the address is a multiple of
/// 16 bytes, or of the size of N elements if that is smaller. It must be the same for all threads, so that the branch
/// is cheap.
template <int N, class T>
__device__ inline void load_values(const T* address, bool aligned, gpu_compute_t<T> (&values)[N]) {
  constexpr int width = N < vector_width<T> ? N : vector_width<T>;
  if (aligned) {
    FURLONG_UNROLL
    for (int i = 0; i < N; i += width) {
      const Vector<T, width> vector = load_vector<width>(address + i);
      FURLONG_UNROLL
      for (int k = 0; k < width; ++k) values[i + k] = to_compute(vector[k]);
    }
  } else {
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) values[i] = to_compute(address[i]);
  }
}
/// Stores N consecutive elements, rounded to the storage type; `aligned` as in load_values().
template <int N, class T>
__device__ inline void store_values(T* address, bool aligned, const gpu_compute_t<T> (&values)[N]) {
  constexpr int width = N < vector_width<T> ? N : vector_width<T>;
  if (aligned) {
    FURLONG_UNROLL
    for (int i = 0; i < N; i += width) {
      Vector<T, width> vector;
      FURLONG_UNROLL
      for (int k = 0; k < width; ++k) vector[k] = from_compute<T>(values[i + k]);
      store_vector<width>(address + i, vector);
    }
  } else {
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) address[i] = from_compute<T>(values[i]);
  }
}

/// Returns whether all addresses are multiples of 16 bytes. Null counts as aligned.
template <class... Pointers>
bool all_aligned(const Pointers*... addresses) {
  return (is_aligned(addresses, 16) && ...);
}

/// Returns the smallest power of two that is at least `wanted`, but at most `limit`, itself a power of two.
inline unsigned power_of_two_up_to(std::int64_t wanted, unsigned limit) {
  unsigned power = 1;
  while (power < limit && power < wanted) power *= 2;
  return power;
}

/// Calls body(integral_constant<int, N>) with the number N of elements that a thread accesses at once: vector_width<T>
/// if it divides `columns`, otherwise 1.
template <class T, class Body>
void with_vector_width(std::int64_t columns, const Body& body) {
  if (columns % vector_width<T> == 0) {
    body(std::integral_constant<int, vector_width<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

/// Returns the shape of a thread block for column_total() over `blocks` rows.
inline dim3 column_total_block(std::int64_t blocks) { return dim3(32, power_of_two_up_to(blocks, 32)); }

/// Returns the sum over the rows of one column of values [blocks, columns]: column blockIdx.x · 32 + threadIdx.x, or 0
/// past the last column. The result is valid only in threads with threadIdx.y = 0. Each of the blockDim.y threads of a
/// column sums every blockDim.y-th row; their sums are then added in order. All threads of the block must call it.
template <class T>
__device__ inline T column_total(const T* values, std::int64_t blocks, std::int64_t columns) {
  FURLONG_SHARED(T, parts, [32][33]);
  const std::int64_t column = global_thread();
  T sum = 0;
  if (column < columns) {
    for (std::int64_t block = threadIdx.y; block < blocks; block += blockDim.y) sum += values[block * columns + column];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (unsigned y = 1; threadIdx.y == 0 && y < blockDim.y; ++y) sum += parts[y][threadIdx.x];
  return sum;
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
