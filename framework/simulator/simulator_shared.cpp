#include "framework/simulator/simulator_shared.h"

#include <cstdint>

#include "framework/core/error.h"
#include "framework/simulator/simulator.h"

namespace furlong::simulator {
namespace {

constexpr std::size_t band_bytes = 128;          // minimum distance between two variables
constexpr std::size_t static_limit = 48 * 1024;  // nvcc's limit on static shared memory
constexpr unsigned char unwritten = 0xff;        // NaN in every floating type
constexpr unsigned char band[2] = {0xfb, 0x7f};  // also NaN, and unlikely to be written by a kernel

// volatile, because ThreadSanitizer must not track these stores, and it tracks those of memset.
void fill(char* memory, std::size_t bytes, unsigned char at_even, unsigned char at_odd) {
  using Word [[gnu::may_alias]] = std::uint64_t;
  const Word word = 0x0001000100010001ull * (at_even | at_odd << 8);
  const auto place = [](const char* address) { return reinterpret_cast<std::uintptr_t>(address); };
  const char* const end = memory + bytes;
  while (memory < end) {
    if (place(memory) % 8 == 0 && end - memory >= 8) {
      *reinterpret_cast<volatile Word*>(memory) = word;
      memory += 8;
    } else {
      *reinterpret_cast<volatile unsigned char*>(memory) = place(memory) % 2 == 0 ? at_even : at_odd;
      ++memory;
    }
  }
}

bool band_touched(const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (static_cast<unsigned char>(from[i]) != band[reinterpret_cast<std::uintptr_t>(from + i) % 2]) return true;
  }
  return false;
}

std::size_t rounded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

void SharedMemory::begin(std::size_t dynamic_bytes, std::size_t limit) {
  if (region_ == nullptr) {
    own_ = Pages(region_bytes);
    region_ = own_.data();
  }
  limit_ = limit;
  used_ = dynamic_bytes;
  static_ = top_ = 0;
  slots_.clear();
  dynamic_ = allocate(nullptr, dynamic_bytes, "dynamic shared memory");
}

char* SharedMemory::allocate(const void* key, std::size_t bytes, const char* name) {
  char* memory = region_ + top_ + band_bytes;
  const std::size_t whole = rounded(bytes);
  unpoison(memory - band_bytes, band_bytes + whole + band_bytes);
  // The guard band after a variable starts directly after its last byte and belongs to it. The band before it belongs
  // to the previous variable.
  fill(memory - band_bytes, band_bytes, band[0], band[1]);
  fill(memory, bytes, unwritten, unwritten);
  fill(memory + bytes, whole - bytes + band_bytes, band[0], band[1]);
  poison(memory - band_bytes, band_bytes);
  poison(memory + bytes, whole - bytes + band_bytes);
  top_ += band_bytes + whole;
  const TsanIgnore ignore;
  slots_.push_back({key, memory, bytes, name});
  return memory;
}

void* SharedMemory::variable(const void* key, std::size_t bytes, const char* name, std::string& error) {
  for (const Slot& slot : slots_) {
    if (slot.key == key) return slot.memory;
  }
  static_ += rounded(bytes);
  used_ += rounded(bytes);
  if (static_ > static_limit) {
    error = fmt::format("shared variable '{}' raises static shared memory to {} bytes; the limit is {}", name, static_,
                        static_limit);
    return nullptr;
  }
  if (used_ > limit_) {
    error = fmt::format("shared variable '{}' raises shared memory to {} bytes; the limit per block is {}", name, used_,
                        limit_);
    return nullptr;
  }
  return allocate(key, bytes, name);
}

bool SharedMemory::holds(const void* address, std::size_t bytes) const {
  const char* begin = static_cast<const char*>(address);
  for (const Slot& slot : slots_) {
    if (begin >= slot.memory && begin + bytes <= slot.memory + slot.bytes) return true;
  }
  return false;
}

std::string SharedMemory::overrun() const {
  if (under_address_sanitizer()) return "";  // AddressSanitizer has checked every access
  for (const Slot& slot : slots_) {
    if (band_touched(slot.memory - band_bytes, band_bytes)) {
      return fmt::format("shared memory was written outside its bounds: before the {} bytes of '{}'", slot.bytes,
                         slot.name);
    }
    if (band_touched(slot.memory + slot.bytes, rounded(slot.bytes) - slot.bytes + band_bytes)) {
      return fmt::format("shared memory was written outside its bounds: after the {} bytes of '{}'", slot.bytes,
                         slot.name);
    }
  }
  return "";
}

void SharedMemory::clear() {
  unpoison(region_, top_ + band_bytes);
  slots_.clear();
}

}  // namespace furlong::simulator
