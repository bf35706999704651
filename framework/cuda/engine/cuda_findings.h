#pragma once
#include "framework/cuda/engine/availability.h"

namespace furlong {

/// What this process finds of CUDA, whatever the device. Looked for once.
const CudaFindings& cuda_findings();

}  // namespace furlong
