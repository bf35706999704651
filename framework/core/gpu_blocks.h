#pragma once
// Optional interface of engines next to GpuEngine: one allocation per tensor (ArenaBlocks::separate).
#include <cstdint>

namespace furlong {

class GpuBlocks {
 public:
  virtual ~GpuBlocks() = default;
  /// Returns exactly `bytes` bytes (at least 1), aligned to 256. Throws MachineError with the sizes.
  virtual void* allocate(int index, std::int64_t bytes) = 0;
  /// Frees the block after all launched work is done, and not before a recording in progress has ended.
  virtual void deallocate(int index, void* block) noexcept = 0;
};

}  // namespace furlong
