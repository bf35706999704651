#pragma once
// Internal to framework/io/hdf5*.cpp: the lock, owned identifiers, and the HDF5 error stack.
#include <hdf5.h>

#include <mutex>
#include <string>

#include "framework/io/hdf5.h"

namespace furlong::hdf5::detail {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

/// Holds the process-wide mutex and turns off HDF5's printing, which is a per-thread setting in thread-safe builds of
/// the library.
class Lock {
 public:
  Lock() : guard_(mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// The innermost entry of the HDF5 error stack. `error_number` is the system's errno if the entry names one, else 0.
struct Reason {
  std::string text;
  int error_number = 0;
  bool is_memory = false;  // HDF5 could not allocate
};
Reason take_reason();

/// Throws MachineError if the operating system failed, else UserError. The message is "FILE: WHAT (REASON)".
[[noreturn]] void throw_reading(const std::string& file, std::string_view what);

hid_t file_type(Type type);
hid_t memory_type(Type type);

}  // namespace furlong::hdf5::detail
