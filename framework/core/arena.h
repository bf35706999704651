#pragma once
// One arena a device. All tensors and scratch come from it, so that a training step, once its sizes are known, asks the
// system for nothing.
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
  std::int64_t bytes_in_use = 0;     ///< handed out and not yet returned
  std::int64_t peak_bytes = 0;       ///< the largest bytes_in_use since reset_peak()
  std::int64_t system_bytes = 0;     ///< the arena's high-water mark: memory that the system has had to provide
  std::int64_t system_requests = 0;  ///< how often the high-water mark rose: constant in a steady step
  std::int64_t allocations = 0;      ///< allocate() calls so far
};

/// How a GPU's arena hands out memory: blocks of one range, or each block an allocation of its own, behind which tools
/// that watch memory know that nothing lies.
enum class ArenaBlocks : std::uint8_t { together, separate };

/// What $FURLONG_SEPARATE_TENSORS asks for: 1 is separate; 0, nothing or null is together. Throws UserError on anything
/// else.
ArenaBlocks arena_blocks_from(const char* text);

/// A range of addresses reserved once (huge pages asked for on the CPU), handed out best-fit, neighbours merged on
/// return. Addresses for `shape_only` are not backed by memory and must not be dereferenced. On a GPU memory is handed
/// out in the order of one stream: what is returned may be given to work launched later on it. Thread-safe.
class Arena {
 public:
  /// `separate` is for GPUs alone.
  Arena(Device device, std::int64_t capacity_bytes, ArenaBlocks blocks = ArenaBlocks::together);
  /// Over memory that is somebody else's, and stays so.
  Arena(Device device, void* memory, std::int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// At least `bytes`, aligned to 256, contents undefined. Throws MachineError with the numbers when the capacity is
  /// passed.
  void* allocate(std::int64_t bytes);
  void release(void* pointer) noexcept;

  ArenaCounters counters() const;
  void reset_peak();
  std::int64_t capacity() const { return capacity_; }

 private:
  /// Whether AddressSanitizer is told what is handed out. Not of what is borrowed: recorded work is replayed over it
  /// after all is returned.
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
  std::int64_t top_ = 0;     // the high-water mark, as an offset; of separate blocks, their bytes
  std::int64_t backed_ = 0;  // on a GPU: how far there is memory behind the addresses
  char* base_ = nullptr;
  bool borrowed_ = false;
  std::map<std::int64_t, std::int64_t> free_by_offset_;           // offset -> size
  std::set<std::pair<std::int64_t, std::int64_t>> free_by_size_;  // (size, offset)
  std::map<std::int64_t, std::int64_t> used_;                     // offset -> size
  std::map<void*, std::int64_t> separate_;                        // allocations of their own -> size
  ArenaCounters counters_;
  mutable std::mutex mutex_;
};

/// The arena of a device, made on first use with the memory that this process may use as capacity.
Arena& arena(const Device& device);

/// A part of a GPU's arena as an arena of its own, for work whose addresses have to stay its own after it is done: a
/// step that was recorded writes to them whenever it is replayed.
class ArenaPool {
 public:
  /// Throws MachineError when the device has not that much left.
  ArenaPool(const Device& device, std::int64_t bytes);
  /// Gives the memory back, unless a tensor still lies in it.
  ~ArenaPool();
  ArenaPool(const ArenaPool&) = delete;
  ArenaPool& operator=(const ArenaPool&) = delete;

  /// While it lives, arena(device) is the pool.
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
