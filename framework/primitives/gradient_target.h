#pragma once
// Where a computed gradient goes: what products, sums and backward functions have in common.
#include <cstdint>

#include "framework/core/tensor.h"

namespace furlong {

/// What a backward function is to do with the gradient of one input.
enum class GradientMode : std::uint8_t {
  overwrite,   ///< the memory holds nothing yet: write
  accumulate,  ///< add to what is there
  skip         ///< nobody wants it: the tensor is undefined
};

/// Where a backward function puts one gradient. `tensor` has the input's shape (strides may differ); its dtype is the
/// input's for activations and the store's gradient dtype (float32, or float64 in tests) for parameters.
struct GradientTarget {
  Tensor tensor;
  GradientMode mode = GradientMode::skip;
  bool wanted() const { return mode != GradientMode::skip; }
  bool accumulates() const { return mode == GradientMode::accumulate; }
};

}  // namespace furlong
