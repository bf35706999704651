#pragma once
// Selects the kernel of an op: by device first, then by storage type.
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

/// Returns true if the CPU must do the work, and false on the shape-only device, whose memory must not be accessed. For
/// ops without a GPU kernel; other ops use dispatch_kernel (gpu_kernel.h).
inline bool runs_on_cpu(const Stream& stream, const char* op) {
  require(!stream.device.is_gpu(), "{}: no kernel for {}", op, stream.device.text());
  return stream.device.is_cpu();
}

}  // namespace furlong::ops
