#pragma once
// Choosing the body of an op: by device first, then by storage type.
#include <type_traits>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/primitives/gpu_body.h"

namespace furlong::ops {

/// Calls body(type_identity<T>) with T the C++ type of a floating dtype: float, double or bfloat16.
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

/// True when there is work for the CPU; false on the shape-only device, whose memory must not be touched. For ops
/// without a body for GPUs; the others are run by run_body (gpu_body.h).
inline bool runs_on_cpu(const Stream& stream, const char* op) {
  require(!stream.device.is_gpu(), "{}: there is no body for {}", op, stream.device.text());
  return stream.device.is_cpu();
}

}  // namespace furlong::ops
