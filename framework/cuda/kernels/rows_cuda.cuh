#pragma once
// What kernels that go over rows share: elements read as vectors where that can be, and sums over blocks of rows.
#include "framework/cuda/kernels/kernel.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Elements of T that one 16-byte access takes.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));

/// N neighbouring elements in the type they are computed in. `aligned`: the address is a multiple of 16 bytes, or of N
/// elements where these are fewer; it is the same for all threads, so the branch costs next to nothing, and threads own
/// the same elements either way.
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

/// Whether all of these addresses are multiples of 16 bytes; null ones do not count.
template <class... Pointers>
bool all_aligned(const Pointers*... addresses) {
  return (is_aligned(addresses, 16) && ...);
}

inline unsigned power_of_two_up_to(std::int64_t wanted, unsigned most) {
  unsigned power = 1;
  while (power < most && power < wanted) power *= 2;
  return power;
}

/// Calls body(integral_constant<int, N>) with N = vector_width<T> where vectors tile a row of `columns`, else with 1.
template <class T, class Body>
void with_vector_width(std::int64_t columns, const Body& body) {
  if (columns % vector_width<T> == 0) {
    body(std::integral_constant<int, vector_width<T>>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

/// The block that column_total() wants for `blocks` rows.
inline dim3 column_total_block(std::int64_t blocks) { return dim3(32, power_of_two_up_to(blocks, 32)); }

/// Σ over the rows of values [blocks, columns] of column blockIdx.x · 32 + threadIdx.x, right in the threads with
/// threadIdx.y = 0 (0 for columns past the end): rows in turn to the threads of one x, then these in order. All threads
/// of the block must come.
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
