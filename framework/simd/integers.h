#pragma once
#include "framework/simd/rows.h"

namespace furlong::simd {

/// Returns element `index`, in row-major order, of an int32 tensor with contiguous rows: targets and masks, one for
/// each row of another tensor.
inline std::int32_t integer_at(const Tensor& integers, std::int64_t index) {
  if (integers.shape().rank() == 0) return integers.data<std::int32_t>()[0];
  const std::int64_t n = integers.extent(-1);
  return integers.data<std::int32_t>()[row_offset(integers, index / n) + index % n];
}

}  // namespace furlong::simd
