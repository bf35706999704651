#pragma once
// Element-wise kernels over tensors of one shape with any outer strides. Each thread processes a chunk of consecutive
// elements.
#include <array>

#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

/// Elements per thread: 16 bytes of bfloat16 or float32.
template <class T>
inline constexpr int chunk_width = sizeof(T) == 2 ? 8 : 4;

/// Threads per block of an element-wise kernel.
inline constexpr int span_threads = 256;

/// Where the elements of `count` tensors of one shape lie: rows of `columns` elements that are consecutive in every
/// tensor. Each row is divided into chunks. Row dimensions are listed from the innermost on.
template <int count>
struct SpanLayout {
  std::int64_t columns = 1, chunks_per_row = 1, chunks = 0;
  bool vectors = false;  ///< whether whole chunks are aligned in every tensor
  int outer = 0;         ///< number of row dimensions
  std::int64_t extents[Shape::max_rank] = {};
  std::int64_t strides[Shape::max_rank][count] = {};
};

/// Returns the layout for chunks of `width` elements. Dimensions that are contiguous with each other in every tensor
/// are merged, but not the last one if `keep_columns` is set. If rows are not contiguous, chunks are single elements.
template <int width, std::size_t count>
SpanLayout<static_cast<int>(count)> span_layout(const std::array<Tensor, count>& tensors, bool keep_columns = false) {
  SpanLayout<static_cast<int>(count)> layout;
  const Shape& shape = tensors[0].shape();
  const auto each = [&](const auto& holds) {
    bool all = true;
    for (const Tensor& tensor : tensors) all = all && holds(tensor);
    return all;
  };
  require(each([&](const Tensor& tensor) { return tensor.shape() == shape; }),
          "span_layout: the tensors have different shapes");
  int dimension = shape.rank() - 1;
  if (dimension >= 0 && each([](const Tensor& tensor) { return tensor.has_contiguous_rows(); }))
    layout.columns = shape[dimension--];
  std::int64_t rows = 1;
  for (; dimension >= 0; --dimension) {
    const std::int64_t extent = shape[dimension];
    rows *= extent;
    if (extent == 1) continue;
    const int inner = layout.outer - 1;
    if (inner < 0 && !keep_columns &&
        each([&](const Tensor& tensor) { return tensor.strides()[dimension] == layout.columns; })) {
      layout.columns *= extent;
      rows = 1;
      continue;
    }
    bool follows = inner >= 0;
    for (std::size_t i = 0; i < count && follows; ++i)
      follows = tensors[i].strides()[dimension] == layout.strides[inner][i] * layout.extents[inner];
    if (follows) {
      layout.extents[inner] *= extent;
      continue;
    }
    layout.extents[layout.outer] = extent;
    for (std::size_t i = 0; i < count; ++i) layout.strides[layout.outer][i] = tensors[i].strides()[dimension];
    ++layout.outer;
  }
  layout.chunks_per_row = ceil_div(layout.columns, width);
  layout.chunks = rows * layout.chunks_per_row;
  layout.vectors = true;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = static_cast<std::size_t>(width * size_of(tensors[i].dtype()));
    layout.vectors = layout.vectors && is_aligned(tensors[i].address(), bytes < 16 ? bytes : 16);
    for (int outer = 0; outer < layout.outer; ++outer)
      layout.vectors = layout.vectors && layout.strides[outer][i] % width == 0;
  }
  return layout;
}

/// Returns numerator / denominator for non-negative numbers, in 32 bits if they fit, which is several times faster.
__device__ inline std::int64_t quotient(std::int64_t numerator, std::int64_t denominator) {
  if (((numerator | denominator) >> 32) == 0)
    return static_cast<std::uint32_t>(numerator) / static_cast<std::uint32_t>(denominator);
  return numerator / denominator;
}

/// Adds the offset of row `row` in tensor i to offsets[i].
template <int count>
__device__ inline void add_row_offsets(const SpanLayout<count>& layout, std::int64_t row,
                                       std::int64_t (&offsets)[count]) {
  FURLONG_UNROLL
  for (int dimension = 0; dimension < Shape::max_rank; ++dimension) {
    if (dimension < layout.outer) {
      const std::int64_t rest = dimension + 1 < layout.outer ? quotient(row, layout.extents[dimension]) : 0;
      const std::int64_t place = row - rest * layout.extents[dimension];
      FURLONG_UNROLL
      for (int i = 0; i < count; ++i) offsets[i] += place * layout.strides[dimension][i];
      row = rest;
    }
  }
}

/// The elements that one thread processes.
template <int count>
struct SpanChunk {
  int size;                     ///< number of elements, at most the layout's width
  bool vectors;                 ///< a whole chunk, aligned in every tensor
  std::int64_t row, column;     ///< of the first element; its row-major index is row * columns + column
  std::int64_t offsets[count];  ///< offset of the first element in each tensor
};

/// Returns chunk number `index`, which must be below layout.chunks.
template <int width, int count>
__device__ inline SpanChunk<count> span_chunk(const SpanLayout<count>& layout, std::int64_t index) {
  SpanChunk<count> chunk;
  chunk.row = layout.outer == 0 && layout.chunks == layout.chunks_per_row ? 0 : quotient(index, layout.chunks_per_row);
  chunk.column = (index - chunk.row * layout.chunks_per_row) * width;
  const std::int64_t left = layout.columns - chunk.column;
  chunk.size = left < width ? static_cast<int>(left) : width;
  chunk.vectors = layout.vectors && chunk.size == width;
  FURLONG_UNROLL
  for (int i = 0; i < count; ++i) chunk.offsets[i] = chunk.column;
  add_row_offsets(layout, chunk.row, chunk.offsets);
  return chunk;
}

/// Reads the first `size` elements of `source` and sets the others to zero. `vectors`: all `width` elements are
/// present, aligned to 16 bytes or to the size of the chunk if it is smaller.
template <int width, class T>
__device__ inline void read_chunk(const T* source, int size, bool vectors, gpu_compute_t<T> (&values)[width]) {
  if (vectors) {
    constexpr int step = width * sizeof(T) <= 16 ? width : static_cast<int>(16 / sizeof(T));
    FURLONG_UNROLL
    for (int first = 0; first < width; first += step) {
      const auto vector = load_vector<step>(source + first);
      FURLONG_UNROLL
      for (int i = 0; i < step; ++i) values[first + i] = to_compute(vector[i]);
    }
  } else {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) values[i] = i < size ? to_compute(source[i]) : gpu_compute_t<T>{0};
  }
}

/// Writes the first `size` of the values.
template <int width, class T>
__device__ inline void write_chunk(T* target, int size, bool vectors, const gpu_compute_t<T> (&values)[width]) {
  if (vectors) {
    constexpr int step = width * sizeof(T) <= 16 ? width : static_cast<int>(16 / sizeof(T));
    FURLONG_UNROLL
    for (int first = 0; first < width; first += step) {
      Vector<T, step> vector;
      FURLONG_UNROLL
      for (int i = 0; i < step; ++i) vector[i] = from_compute<T>(values[first + i]);
      store_vector(target + first, vector);
    }
  } else {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) {
      if (i < size) target[i] = from_compute<T>(values[i]);
    }
  }
}

/// Launches kernel(arguments..., layout) with one thread per chunk. Does nothing if there are no chunks.
template <int count, class... Parameters, class... Arguments>
void launch_spans(const LaunchTarget& target, void (*kernel)(Parameters...), const SpanLayout<count>& layout,
                  Arguments&&... arguments) {
  if (layout.chunks == 0) return;
  launch(target, kernel, grid_blocks(layout.chunks, span_threads), span_threads, 0, arguments..., layout);
}

}  // namespace FURLONG_GPU
}  // namespace furlong
