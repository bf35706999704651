#pragma once
// One memory arena per device. All tensors and scratch buffers come from it. Once the sizes of a training step are
// known, the step requests no memory from the system.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "framework/core/device.h"

namespace furlong {

struct ArenaCounters {
  std::int64_t bytes_in_use = 0;     ///< allocated and not yet released
  std::int64_t peak_bytes = 0;       ///< largest bytes_in_use since reset_peak()
  std::int64_t system_bytes = 0;     ///< the arena's high-water mark: memory that the system had to provide
  std::int64_t system_requests = 0;  ///< how often the high-water mark rose; constant in a steady step
  std::int64_t allocations = 0;      ///< allocate() calls so far
};

/// How a GPU's arena allocates. `together`: blocks are parts of one address range. `separate`: each block is its own
/// allocation, so that memory checkers (compute-sanitizer) detect accesses beyond its end.
enum class ArenaBlocks : std::uint8_t { together, separate };

/// Parses the value of $FURLONG_SEPARATE_TENSORS: "1" is `separate`; "0", "" or null is `together`. Throws UserError
/// for any other value.
ArenaBlocks parse_arena_blocks(const char* text);

/// Allocates best-fit from one address range that is reserved once (on the CPU with huge pages requested). Adjacent
/// free blocks are merged. Thread-safe.
/// Addresses for `shape_only` have no memory behind them and must not be dereferenced. On a GPU, allocation follows the
/// order of one stream: a released block may be reused by work launched later on that stream.
class Arena {
 public:
  /// `separate` is allowed on GPUs only (ContractError).
  Arena(Device device, std::int64_t capacity_bytes, ArenaBlocks blocks = ArenaBlocks::together);
  /// Allocates from memory that the caller owns.
  Arena(Device device, void* memory, std::int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns at least `bytes` bytes, aligned to 256, with undefined contents. Throws MachineError with the sizes if the
  /// capacity is exceeded.
  void* allocate(std::int64_t bytes);
  /// Returns a block of allocate() to the arena.
  void release(void* pointer) noexcept;

  /// Returns a snapshot of the counters.
  ArenaCounters counters() const;
  /// Sets peak_bytes to bytes_in_use.
  void reset_peak();
  std::int64_t capacity() const { return capacity_; }

 private:
  /// Whether allocations are reported to AddressSanitizer. Borrowed memory is not reported: recorded work is replayed
  /// over it after all its blocks are released.
  bool is_watched() const { return device_.has_host_memory() && !borrowed_ && blocks_ == ArenaBlocks::together; }
  void* place(std::int64_t size);
  void* place_separately(std::int64_t bytes, std::int64_t size);
  void take_back(std::int64_t offset, std::int64_t size);
  void raise_top(std::int64_t top);
  [[noreturn]] void refuse(std::int64_t size) const;
  void insert_free(std::int64_t offset, std::int64_t size);
  void erase_free(std::map<std::int64_t, std::int64_t>::iterator block);

  Device device_;
  std::int64_t capacity_;
  ArenaBlocks blocks_ = ArenaBlocks::together;
  std::int64_t top_ = 0;     // high-water mark as an offset; with separate blocks, their total bytes
  std::int64_t backed_ = 0;  // on a GPU: end of the memory-backed part of the range
  char* base_ = nullptr;
  bool borrowed_ = false;
  std::map<std::int64_t, std::int64_t> free_by_offset_;           // offset -> size
  std::set<std::pair<std::int64_t, std::int64_t>> free_by_size_;  // (size, offset)
  std::map<std::int64_t, std::int64_t> used_;                     // offset -> size
  std::map<void*, std::int64_t> separate_;                        // separate allocation -> size
  ArenaCounters counters_;
  mutable std::mutex mutex_;
};

/// Returns the arena of a device, which lives until the program ends. The first call creates it; its capacity is the
/// device's total memory.
Arena& arena(const Device& device);

/// A part of a GPU's arena that serves as its own arena. It is for work whose addresses must stay reserved after the
/// work is done: a recorded step writes to them each time it is replayed.
class ArenaPool {
 public:
  /// Throws MachineError if the device has fewer than `bytes` bytes left.
  ArenaPool(const Device& device, std::int64_t bytes);
  /// Returns the memory to the device's arena unless a tensor still uses it.
  ~ArenaPool();
  ArenaPool(const ArenaPool&) = delete;
  ArenaPool& operator=(const ArenaPool&) = delete;

  /// While this object exists, arena(device) returns the pool.
  class Use {
   public:
    explicit Use(ArenaPool& pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Device device_;
    Arena* before_;
  };

 private:
  Device device_;
  Arena& home_;
  void* memory_;
  Arena* arena_;
};

}  // namespace furlong
