#pragma once
#include "framework/core/parallel.h"
#include "framework/core/tensor.h"

namespace furlong::simd {

/// Returns the element offset of row `row` (over all dimensions but the last, row-major) of a tensor with any strides.
inline std::int64_t row_offset(const Tensor& tensor, std::int64_t row) {
  std::int64_t offset = 0;
  for (int dimension = tensor.shape().rank() - 2; dimension >= 0; --dimension) {
    offset += row % tensor.shape()[dimension] * tensor.strides()[dimension];
    row /= tensor.shape()[dimension];
  }
  return offset;
}

/// The shape of a tensor seen as rows: the last dimension has `columns` elements, the others together `rows`.
struct RowView {
  std::int64_t rows, columns;
};
inline RowView row_view(const Tensor& tensor) {
  if (tensor.shape().rank() == 0) return {1, 1};
  return {tensor.shape().rows(), tensor.shape()[-1]};
}

}  // namespace furlong::simd
