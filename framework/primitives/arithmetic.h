#pragma once
// Plain sums, copies and scalings over tensors, below the tape: what the tape itself and the optimizers are written
// with.
#include "framework/core/device.h"
#include "framework/primitives/gradient_target.h"

namespace furlong::ops {

/// Sets all elements to `value`. Rows must be contiguous.
void fill(const Stream& stream, const Tensor& tensor, double value);

/// target = source (overwrite) or target += source (accumulate), converting between float dtypes. The same shape; rows
/// contiguous.
void add(const Stream& stream, const Tensor& target, const Tensor& source, GradientMode mode, double scale = 1.0);

/// Copies with conversion between float dtypes; the same shape, rows contiguous.
inline void convert(const Stream& stream, const Tensor& target, const Tensor& source) {
  add(stream, target, source, GradientMode::overwrite);
}

/// Elements that are NaN or infinite. Waits for the device.
std::int64_t count_non_finite(const Stream& stream, const Tensor& tensor);

/// Sum of squares in double, over fixed blocks: the same for any number of threads. Contiguous tensors. Waits for the
/// device.
double sum_of_squares(const Stream& stream, const Tensor& tensor);
/// The same number into `result`, float64 [1] on the device, without waiting.
void sum_of_squares(const Stream& stream, const Tensor& tensor, const Tensor& result);

}  // namespace furlong::ops
