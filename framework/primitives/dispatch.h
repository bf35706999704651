#pragma once
// Selects the kernel of an op: by device (gpu_kernel.h), then by storage type.
#include <type_traits>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Calls body(type_identity<T>), where T is the C++ type of a floating dtype: float, double or bfloat16.
template <class Body>
void with_float_type(DType dtype, const char* op, const Body& body) {
  switch (dtype) {
    case DType::float32:
      return body(std::type_identity<float>{});
    case DType::float64:
      return body(std::type_identity<double>{});
    case DType::bfloat16:
      return body(std::type_identity<bfloat16>{});
    default:
      throw ContractError("{}: {} elements, expected a floating type", op, name_of(dtype));
  }
}

}  // namespace furlong::ops
