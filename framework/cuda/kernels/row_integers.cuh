#pragma once
#include "framework/cuda/kernels/kernel.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// An int32 tensor with any shape and strides as a flat array in row-major order: element r belongs to row r of another
/// tensor, such as its target or mask. Constructed on the host and passed to kernels by value. Dimensions that are
/// contiguous with each other are merged.
struct RowIntegers {
  const std::int32_t* integers;
  int rank = 1;
  std::int64_t extents[Shape::max_rank] = {1}, strides[Shape::max_rank] = {1};

  explicit RowIntegers(const Tensor& tensor) : integers(gpu_data<std::int32_t>(tensor)) {
    for (int i = 0; i < tensor.shape().rank(); ++i) {
      const std::int64_t extent = tensor.extent(i), stride = tensor.strides()[i];
      if (i == 0) {
        extents[0] = extent;
        strides[0] = stride;
      } else if (strides[rank - 1] == extent * stride) {
        extents[rank - 1] *= extent;
        strides[rank - 1] = stride;
      } else {
        extents[rank] = extent;
        strides[rank++] = stride;
      }
    }
  }
  /// Whether the tensor is defined.
  __device__ bool given() const { return integers != nullptr; }
  /// Returns element `row` in row-major order.
  __device__ std::int32_t operator[](std::int64_t row) const {
    std::int64_t offset = 0;
    FURLONG_UNROLL
    for (int i = Shape::max_rank - 1; i > 0; --i) {
      if (i < rank) {
        offset += row % extents[i] * strides[i];
        row /= extents[i];
      }
    }
    return integers[offset + row * strides[0]];
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
