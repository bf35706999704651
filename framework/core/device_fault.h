#pragma once
// A device whose work has failed, apart from what it merely refuses.
#include "framework/core/error.h"

namespace furlong {

/// Work that was launched earlier failed on the device (an address outside its memory, an error of the hardware): what
/// is met now has not caused it, and nothing that the device holds can be relied on, nor does it take other work from
/// this process.
class DeviceFault : public MachineError {
 public:
  using MachineError::MachineError;
};

}  // namespace furlong
