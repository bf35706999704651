#pragma once
// Element-wise reductions on the CPU.
#include <cstddef>

#include "communication/communicator.h"
#include "framework/core/dtype.h"

namespace furlong {

/// Computes out[i] = a[i] (reduction) b[i] for n elements. `out` may equal `a` or `b`; otherwise the ranges must not
/// overlap. bfloat16 sums are computed in float32 and rounded; integer sums wrap around; NaN propagates.
using ReductionFunction = void (*)(void* out, const void* a, const void* b, std::size_t n);
/// Returns the function for a dtype and a reduction.
ReductionFunction reduction_function(DType dtype, Reduction reduction);

}  // namespace furlong
