#pragma once
// Element by element, what an engine on the CPU does with values that came from another rank.
#include <cstddef>

#include "communication/communicator.h"
#include "framework/core/dtype.h"

namespace furlong {

/// out[i] = a[i] (reduction) b[i] for n elements of the dtype. `out` may be `a` or `b`; otherwise they do not overlap.
/// Sums of bfloat16 are formed in float32 and rounded; integers wrap around; a NaN stays one.
using ReductionFunction = void (*)(void* out, const void* a, const void* b, std::size_t n);
ReductionFunction reduction_function(DType dtype, Reduction reduction);

}  // namespace furlong
