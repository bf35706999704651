#pragma once
// Elements of floating-point tensors as doubles on the host, whatever the tensor's dtype and device.
#include <vector>

#include "framework/core/tensor.h"

namespace furlong {

/// Returns the elements of a float32 or float64 tensor, in row-major order. Waits for the device.
inline std::vector<double> host_values(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return tensor.to_vector<double>();
  const std::vector<float> values = tensor.to_vector<float>();
  return {values.begin(), values.end()};
}

/// Sets the elements of a float32 or float64 tensor; rounds to float32.
inline void set_values(const Tensor& target, const std::vector<double>& values) {
  if (target.dtype() == DType::float64) {
    target.copy_from(Tensor::from(values, target.shape(), target.device()));
  } else {
    target.copy_from(Tensor::from(std::vector<float>(values.begin(), values.end()), target.shape(), target.device()));
  }
}

}  // namespace furlong
