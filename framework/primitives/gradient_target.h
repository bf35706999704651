#pragma once
// Where a computed gradient is written. Shared by products, sums and backward functions.
#include <cstdint>

#include "framework/core/tensor.h"

namespace furlong {

/// How a backward function writes the gradient of one input.
enum class GradientMode : std::uint8_t {
  overwrite,   ///< the memory is uninitialized: write
  accumulate,  ///< add to the existing gradient
  skip         ///< not needed: the tensor is undefined
};

/// Where a backward function writes one gradient. `tensor` has the input's shape; strides may differ. For activations
/// it has the input's dtype. For parameters it has the store's gradient dtype (float32, or float64 in tests).
struct GradientTarget {
  Tensor tensor;
  GradientMode mode = GradientMode::skip;
  /// Whether the gradient is needed.
  bool wanted() const { return mode != GradientMode::skip; }
  /// Whether to add to `tensor` instead of overwriting it.
  bool accumulates() const { return mode == GradientMode::accumulate; }
};

}  // namespace furlong
