#pragma once
// The shared memory of the block that runs.
#include <cstddef>
#include <string>
#include <vector>

#include "framework/simulator/simulator_fibre.h"

namespace furlong::simulator {

/// Variables lie apart, with bands between them that nobody may touch: AddressSanitizer stops at a touch, other builds
/// find at the end of the block what was written there. Reading a band or a variable before it is written gives NaN.
class SharedMemory {
 public:
  static constexpr std::size_t region_bytes = 1 << 20;

  /// Memory to lie in from now on, instead of its own.
  void use_region(char* region) { region_ = region; }

  /// A new block, with its dynamic shared memory.
  void begin(std::size_t dynamic_bytes, std::size_t limit);
  /// The variable of `key`, made at the first call; null where that passes a limit, which `error` then says.
  void* variable(const void* key, std::size_t bytes, const char* name, std::string& error);
  void* dynamic() const { return dynamic_; }
  /// Whether [address, address + bytes) lies in one variable or in the dynamic memory.
  bool holds(const void* address, std::size_t bytes) const;
  std::size_t used() const { return used_; }
  /// What was written outside; empty if nothing was.
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
  std::size_t used_ = 0, static_ = 0;  // as CUDA counts
  std::size_t limit_ = 0;
  char* dynamic_ = nullptr;
  std::vector<Slot> slots_;
};

}  // namespace furlong::simulator
