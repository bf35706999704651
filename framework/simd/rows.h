#pragma once
#include "framework/core/parallel.h"
#include "framework/core/tensor.h"

namespace furlong::simd {

/// Element offset of row `row` (all dimensions but the last, row-major order) of a tensor with any strides.
inline std::int64_t row_offset(const Tensor& tensor, std::int64_t row) {
  std::int64_t offset = 0;
  for (int dimension = tensor.shape().rank() - 2; dimension >= 0; --dimension) {
    offset += row % tensor.shape()[dimension] * tensor.strides()[dimension];
    row /= tensor.shape()[dimension];
  }
  return offset;
}

/// A tensor seen as rows: one long row when contiguous, so that threads share even a vector evenly.
struct RowView {
  std::int64_t rows, columns;
};
inline RowView row_view(const Tensor& tensor) {
  if (tensor.shape().rank() == 0) return {1, 1};
  return {tensor.shape().rows(), tensor.shape()[-1]};
}

}  // namespace furlong::simd
