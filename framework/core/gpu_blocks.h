#pragma once
// What engines offer beside GpuEngine: memory for one tensor at a time, where each is to have an allocation of its own
// (ArenaBlocks::separate).
#include <cstdint>

namespace furlong {

class GpuBlocks {
 public:
  virtual ~GpuBlocks() = default;
  /// So many bytes (1 or more) and not one more, aligned to 256. Throws MachineError with the numbers.
  virtual void* allocate(int index, std::int64_t bytes) = 0;
  /// When all that was launched is done, and not before what is being recorded has been.
  virtual void deallocate(int index, void* block) noexcept = 0;
};

}  // namespace furlong
