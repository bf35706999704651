#pragma once
#include "framework/cuda/engine/availability.h"

namespace furlong {

/// Returns what this process finds of CUDA, independent of the device. Queried once.
const CudaFindings& cuda_findings();

}  // namespace furlong
