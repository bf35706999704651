#pragma once
// For framework/io/hdf5*.cpp only: the lock, identifiers with their closing, and what the HDF5 error stack says.
#include <hdf5.h>

#include <mutex>
#include <string>

#include "framework/io/hdf5.h"

namespace furlong::hdf5::detail {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

/// Holds the process-wide mutex and keeps HDF5 from printing (a setting of the thread where the library was built for
/// threads).
class Lock {
 public:
  Lock() : guard_(mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// Takes the innermost entry from the error stack and empties it; `error_number` is the system's errno where one is
/// named, else 0.
struct Reason {
  std::string text;
  int error_number = 0;
};
Reason take_reason();

/// MachineError where the operating system failed, else UserError. The message is "FILE: WHAT (REASON)".
[[noreturn]] void throw_reading(const std::string& file, std::string_view what);

hid_t file_type(Type type);
hid_t memory_type(Type type);

}  // namespace furlong::hdf5::detail
