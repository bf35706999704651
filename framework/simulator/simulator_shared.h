#pragma once
// Shared memory of the running block.
#include <cstddef>
#include <string>
#include <vector>

#include "framework/simulator/simulator_fiber.h"

namespace furlong::simulator {

/// Variables are separated by guard bands. AddressSanitizer reports any access to a band; other builds detect writes to
/// a band at the end of the block. Reading a band, or a variable before it is written, gives NaN.
class SharedMemory {
 public:
  static constexpr std::size_t region_bytes = 1 << 20;

  /// Uses `region` from now on instead of its own memory.
  void use_region(char* region) { region_ = region; }

  /// Starts a new block with its dynamic shared memory.
  void begin(std::size_t dynamic_bytes, std::size_t limit);
  /// Returns the variable that `key` identifies, allocated on the first call. Returns null and sets `error` if the
  /// limit would be exceeded.
  void* variable(const void* key, std::size_t bytes, const char* name, std::string& error);
  void* dynamic() const { return dynamic_; }
  /// Returns whether [address, address + bytes) lies within one variable or the dynamic memory.
  bool holds(const void* address, std::size_t bytes) const;
  std::size_t used() const { return used_; }
  /// Describes writes to guard bands; empty if there were none.
  std::string overrun() const;
  void clear();

 private:
  struct Slot {
    const void* key;
    char* memory;
    std::size_t bytes;
    const char* name;
  };
  char* allocate(const void* key, std::size_t bytes, const char* name);

  Pages own_;
  char* region_ = nullptr;
  std::size_t top_ = 0;                // of the region
  std::size_t used_ = 0, static_ = 0;  // as CUDA counts bytes
  std::size_t limit_ = 0;
  char* dynamic_ = nullptr;
  std::vector<Slot> slots_;
};

}  // namespace furlong::simulator
