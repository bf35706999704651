#include "framework/core/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/gpu_blocks.h"
#include "framework/core/gpu_engine.h"

#ifdef FURLONG_SANITIZED
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FURLONG_POISON(pointer, size) ASAN_POISON_MEMORY_REGION(pointer, size)
#define FURLONG_UNPOISON(pointer, size) ASAN_UNPOISON_MEMORY_REGION(pointer, size)
#endif
#endif
#ifndef FURLONG_POISON
#define FURLONG_POISON(pointer, size) ((void)(pointer), (void)(size))
#define FURLONG_UNPOISON(pointer, size) ((void)(pointer), (void)(size))
#endif

namespace furlong {
namespace {

constexpr std::int64_t alignment = 256;
#ifdef FURLONG_SANITIZED
constexpr std::int64_t red_zone =
    256;  // poisoned bytes after each block, so that AddressSanitizer detects overruns inside the arena
#else
constexpr std::int64_t red_zone = 0;
#endif

std::int64_t rounded(std::int64_t bytes) { return (bytes + red_zone + alignment - 1) / alignment * alignment; }

GpuBlocks& blocks_of(const Device& device) { return dynamic_cast<GpuBlocks&>(require_gpu_engine(device.type)); }

}  // namespace

ArenaBlocks parse_arena_blocks(const char* text) {
  const std::string_view asked = text ? text : "";
  if (asked.empty() || asked == "0") return ArenaBlocks::together;
  if (asked == "1") return ArenaBlocks::separate;
  throw UserError(
      "FURLONG_SEPARATE_TENSORS: '{}' is neither 0 nor 1; expected 1 to give each tensor on a GPU its own allocation, "
      "or 0",
      asked);
}

Arena::Arena(Device device, std::int64_t capacity_bytes, ArenaBlocks blocks)
    : device_(device), capacity_(capacity_bytes / alignment * alignment), blocks_(blocks) {
  require(blocks == ArenaBlocks::together || device.is_gpu(), "arena: separate blocks require a GPU, not {}",
          device.text());
  if (blocks == ArenaBlocks::separate) return;
  if (device.is_shape_only()) {
    base_ = reinterpret_cast<char*>(std::uintptr_t{1} << 46);
    return;
  }
  if (device.is_gpu()) {
    base_ = static_cast<char*>(require_gpu_engine(device.type).reserve(device.index, capacity_));
    return;
  }
  void* memory = mmap(nullptr, static_cast<std::size_t>(capacity_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw MachineError(
        "cannot reserve {} MiB of address space for tensors ({}); raise the limit of address space (ulimit -v)",
        capacity_ >> 20, std::strerror(errno));
  }
  base_ = static_cast<char*>(memory);
  madvise(base_, static_cast<std::size_t>(capacity_),
          MADV_HUGEPAGE);  // only a hint: without huge pages the first touch of 4 KiB pages costs far more
}

Arena::Arena(Device device, void* memory, std::int64_t bytes)
    : device_(device),
      capacity_(bytes / alignment * alignment),
      backed_(capacity_),
      base_(static_cast<char*>(memory)),
      borrowed_(true) {}

Arena::~Arena() {
  if (device_.is_shape_only()) return;
  if (blocks_ == ArenaBlocks::separate) {
    for (const auto& [block, size] : separate_) blocks_of(device_).deallocate(device_.index, block);
    return;
  }
  if (is_watched()) FURLONG_UNPOISON(base_, static_cast<std::size_t>(top_));  // other code may reuse the addresses
  if (borrowed_) return;
  if (device_.is_gpu()) {
    require_gpu_engine(device_.type).release(device_.index, base_, capacity_);
    return;
  }
  munmap(base_, static_cast<std::size_t>(capacity_));
}

void Arena::insert_free(std::int64_t offset, std::int64_t size) {
  free_by_offset_.emplace(offset, size);
  free_by_size_.emplace(size, offset);
}

void Arena::erase_free(std::map<std::int64_t, std::int64_t>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_by_offset_.erase(block);
}

void Arena::refuse(std::int64_t size) const {
  const bool is_limited = device_.is_cpu() && capacity_ < sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 2;
  throw MachineError("out of memory on {}: requested {} MiB with {} of {} MiB in use{}", device_.text(), size >> 20,
                     counters_.bytes_in_use >> 20, capacity_ >> 20,
                     is_limited ? "; a limit of address space (ulimit -v, -d) allows no more" : "");
}

void Arena::raise_top(std::int64_t top) {
  top_ = top;
  counters_.system_bytes = top_;
  ++counters_.system_requests;
}

/// Returns `size` bytes of the range.
void* Arena::place(std::int64_t size) {
  std::int64_t offset = top_;
  const auto fit = free_by_size_.lower_bound({size, 0});
  if (fit != free_by_size_.end()) {
    offset = fit->second;
    const std::int64_t found = fit->first;
    erase_free(free_by_offset_.find(offset));
    if (found > size) insert_free(offset + size, found - size);
  } else {
    // No free block fits: grow, starting inside the last free block if it ends at the high-water mark.
    if (!free_by_offset_.empty()) {
      const auto last = std::prev(free_by_offset_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        erase_free(last);
      }
    }
    try {
      if (size > capacity_ - offset) refuse(size);
      if (device_.is_gpu() && offset + size > backed_)
        backed_ = require_gpu_engine(device_.type).back(device_.index, base_, backed_, offset + size);
    } catch (...) {
      if (offset != top_) insert_free(offset, top_ - offset);
      throw;
    }
    raise_top(offset + size);
  }
  used_.emplace(offset, size);
  return base_ + offset;
}

/// Returns a separate allocation of `bytes`, counted as `size` as in the range.
void* Arena::place_separately(std::int64_t bytes, std::int64_t size) {
  if (size > capacity_ - counters_.bytes_in_use) refuse(size);
  void* const block = blocks_of(device_).allocate(device_.index, bytes);
  separate_.emplace(block, size);
  const std::int64_t held = counters_.bytes_in_use + size - red_zone;
  if (held > top_) raise_top(held);
  return block;
}

void* Arena::allocate(std::int64_t bytes) {
  require(bytes >= 0 && bytes >> 62 == 0, "arena: cannot allocate {} bytes", bytes);
  const std::int64_t least = bytes == 0 ? 1 : bytes, size = rounded(least);
  const std::lock_guard lock(mutex_);
  char* const pointer =
      static_cast<char*>(blocks_ == ArenaBlocks::separate ? place_separately(least, size) : place(size));
  counters_.bytes_in_use += size - red_zone;
  counters_.peak_bytes = std::max(counters_.peak_bytes, counters_.bytes_in_use);
  ++counters_.allocations;
  if (is_watched()) {
    FURLONG_UNPOISON(pointer, static_cast<std::size_t>(bytes));
    FURLONG_POISON(pointer + bytes, static_cast<std::size_t>(size - bytes));
  }
  if (device_.has_host_memory()) {
#ifdef FURLONG_SANITIZED
    std::memset(pointer, 0xff,
                static_cast<std::size_t>(bytes));  // NaN in every float type exposes reads before writes
#endif
  }
  return pointer;
}

void Arena::release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (blocks_ == ArenaBlocks::separate) {
    const auto block = separate_.find(pointer);
    if (block == separate_.end()) return;
    counters_.bytes_in_use -= block->second - red_zone;
    separate_.erase(block);
    blocks_of(device_).deallocate(device_.index, pointer);
    return;
  }
  const auto block = used_.find(static_cast<char*>(pointer) - base_);
  if (block == used_.end()) return;
  const auto [offset, size] = *block;
  used_.erase(block);
  counters_.bytes_in_use -= size - red_zone;
  if (is_watched()) FURLONG_POISON(pointer, static_cast<std::size_t>(size));
  take_back(offset, size);
}

/// Frees a block of the range and merges it with its free neighbors.
void Arena::take_back(std::int64_t offset, std::int64_t size) {
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && offset + size == next->first) {
    size += next->second;
    const auto merged = next++;
    erase_free(merged);
  }
  if (next != free_by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      erase_free(previous);
    }
  }
  insert_free(offset, size);
}

ArenaCounters Arena::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Arena::reset_peak() {
  const std::lock_guard lock(mutex_);
  counters_.peak_bytes = counters_.bytes_in_use;
}

namespace {

/// The arenas of GPUs by type and index: created on first use, temporarily replaced by a pool.
struct GpuArenas {
  std::mutex mutex;
  std::map<std::pair<DeviceType, int>, Arena*> arenas;

  Arena*& of(const Device& device) {
    Arena*& found = arenas[{device.type, device.index}];
    if (found == nullptr) {
      found = new Arena(device, require_gpu_engine(device.type).describe(device.index).memory_bytes,
                        parse_arena_blocks(std::getenv("FURLONG_SEPARATE_TENSORS")));
    }
    return found;
  }
};
GpuArenas& gpu_arenas() {
  static auto* const arenas = new GpuArenas;  // leaked on purpose, as the arenas are
  return *arenas;
}

/// Returns the bytes of address space that tensors in host memory may take: those of the machine's memory, or three
/// quarters of what the limits on address space and data leave (ulimit -v, -d). Threads and libraries need the rest.
std::int64_t host_capacity() {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  std::int64_t bytes = sysconf(_SC_PHYS_PAGES) * page;
  std::array<std::int64_t, 6> pages{};  // all, resident, shared, text, 0, data
  std::ifstream used("/proc/self/statm");
  for (std::int64_t& count : pages) used >> count;
  const auto limit_by = [&](int resource, std::int64_t in_use) {
    struct rlimit limit {};
    if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    constexpr std::int64_t least = 1 << 20;
    const auto total = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1ULL << 62));
    bytes = std::min(bytes, std::max(least, (total - in_use * page) / 4 * 3));
  };
  limit_by(RLIMIT_AS, pages[0]);
  limit_by(RLIMIT_DATA, pages[5]);
  return bytes;
}

}  // namespace

Arena& arena(const Device& device) {
  // Leaked on purpose: tensors with static storage may outlive any order of destruction.
  static Arena* const cpu = new Arena(Device{}, host_capacity());
  static Arena* const shape_only = new Arena(Device{DeviceType::shape_only, 0}, std::int64_t{1} << 45);
  if (device.is_cpu()) return *cpu;
  if (device.is_shape_only()) return *shape_only;
  GpuArenas& gpus = gpu_arenas();
  const std::lock_guard lock(gpus.mutex);
  return *gpus.of(device);
}

ArenaPool::ArenaPool(const Device& device, std::int64_t bytes)
    : device_(device), home_(arena(device)), memory_(home_.allocate(bytes)), arena_(new Arena(device, memory_, bytes)) {
  require(device.is_gpu(), "arena pool: requires a GPU, not {}", device.text());
}

ArenaPool::~ArenaPool() {
  if (arena_->counters().bytes_in_use > 0) return;  // a tensor still uses the pool and will return its memory to it
  delete arena_;
  home_.release(memory_);
}

ArenaPool::Use::Use(ArenaPool& pool) : device_(pool.device_) {
  GpuArenas& gpus = gpu_arenas();
  const std::lock_guard lock(gpus.mutex);
  before_ = std::exchange(gpus.of(device_), pool.arena_);
}

ArenaPool::Use::~Use() {
  GpuArenas& gpus = gpu_arenas();
  const std::lock_guard lock(gpus.mutex);
  gpus.of(device_) = before_;
}

}  // namespace furlong
