#pragma once
// Bounds-checked reads of a foreign file at offsets that the file itself states.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/core/error.h"

namespace furlong::foreign {

static_assert(std::endian::native == std::endian::little,
              "numbers in these files are little-endian and are copied unchanged");

/// Whether [offset, offset + bytes) lies within [0, end), without overflow.
constexpr bool within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t end) {
  return bytes <= end && offset <= end - bytes;
}

/// Whether the path is a directory, or exists. Both return false if the system cannot determine it; opening the file
/// then reports why.
bool is_directory(const std::filesystem::path& path);
bool exists(const std::filesystem::path& path);

/// A regular file open for reading. Any number of threads may read at once.
class ByteFile {
 public:
  /// Opens the file. Throws UserError if it does not exist, MachineError if it cannot be opened.
  explicit ByteFile(const std::filesystem::path& path);
  ~ByteFile();
  ByteFile(const ByteFile&) = delete;
  ByteFile& operator=(const ByteFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Reads `bytes` bytes at `offset`. Throws UserError if the file ends before them, MachineError if reading fails.
  void read_at(std::uint64_t offset, void* destination, std::size_t bytes) const;
  void read_at(std::uint64_t offset, std::span<std::byte> destination) const {
    read_at(offset, destination.data(), destination.size());
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Reads a range of a file or of memory sequentially. Reading past its end throws a UserError that starts with
/// `origin`.
class ByteCursor {
 public:
  /// Reads bytes [begin, end) of `file`, which must outlive the cursor. Positions count from the start of the file.
  ByteCursor(const ByteFile& file, std::uint64_t begin, std::uint64_t end, std::string origin);
  /// Reads `memory`, which must outlive the cursor.
  ByteCursor(std::span<const std::byte> memory, std::string origin);

  const std::string& origin() const { return origin_; }
  std::uint64_t position() const { return window_begin_ + at_; }
  std::uint64_t remaining() const { return end_ - position(); }

  void take(void* destination, std::size_t bytes);
  /// Reads a little-endian number.
  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    take(&value, sizeof value);
    return value;
  }
  /// Reads `bytes` bytes as text in any encoding. Allocates only after checking that the bytes exist.
  std::string take_text(std::uint64_t bytes);
  void skip(std::uint64_t bytes);

 private:
  void need(std::uint64_t bytes) const;
  void refill();

  const ByteFile* file_ = nullptr;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> window_;  ///< the buffered bytes, starting at window_begin_
  std::uint64_t window_begin_ = 0;
  std::size_t at_ = 0;  ///< offset in window_
  std::uint64_t end_ = 0;
  std::string origin_;
};

}  // namespace furlong::foreign
