#pragma once
// The error of a device whose work has failed, as opposed to a request that it refuses.
#include "framework/core/error.h"

namespace furlong {

/// Work launched earlier failed on the device, for example by an illegal address or a hardware error. The call that
/// reports it is not the cause, except a launch with CUDA_LAUNCH_BLOCKING=1. The device's memory is no longer reliable
/// and the device accepts no further work from this process.
class DeviceFault : public MachineError {
 public:
  using MachineError::MachineError;
};

}  // namespace furlong
