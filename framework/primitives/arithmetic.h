#pragma once
// Sums, copies and scaling of tensors, below the tape. The tape and the optimizers are built on them.
#include "framework/core/device.h"
#include "framework/primitives/gradient_target.h"

namespace furlong::ops {

/// Sets all elements to `value`. Rows must be contiguous.
void fill(const Stream& stream, const Tensor& tensor, double value);

/// target = scale * source (overwrite) or target += scale * source (accumulate), converting between float dtypes. Both
/// have the same shape and contiguous rows.
void add(const Stream& stream, const Tensor& target, const Tensor& source, GradientMode mode, double scale = 1.0);

/// Copies with conversion between float dtypes. Both have the same shape and contiguous rows.
inline void convert(const Stream& stream, const Tensor& target, const Tensor& source) {
  add(stream, target, source, GradientMode::overwrite);
}

/// Returns the number of elements that are NaN or infinite. Waits for the device.
std::int64_t count_non_finite(const Stream& stream, const Tensor& tensor);

/// Returns the sum of squares, in double over fixed blocks, with the same bits for any number of threads. The tensor
/// must be contiguous. Waits for the device.
double sum_of_squares(const Stream& stream, const Tensor& tensor);
/// Writes the same number to `result`, float64 [1] on the device, without waiting.
void sum_of_squares(const Stream& stream, const Tensor& tensor, const Tensor& result);

}  // namespace furlong::ops
