#include "framework/core/dtype.h"

#include "framework/core/error.h"

namespace furlong {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float64:
      return "float64";
    case DType::int32:
      return "int32";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

DType dtype_from_name(const std::string& name) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float64, DType::int32, DType::uint8}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw UserError("dtype '{}' is unknown; expected float32, bfloat16, float64, int32 or uint8", name);
}

}  // namespace furlong
