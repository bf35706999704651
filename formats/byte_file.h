#pragma once
// Bytes of a foreign file at places that the file itself states: every read is checked against what is there.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/core/error.h"

namespace furlong::foreign {

static_assert(std::endian::native == std::endian::little,
              "numbers in these files are little-endian and are copied as they are");

/// Whether [offset, offset + bytes) lies within [0, end), without overflow.
constexpr bool within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t end) {
  return bytes <= end && offset <= end - bytes;
}

/// What is there, as far as can be seen: where the system does not tell, opening the file will say why.
bool is_directory(const std::filesystem::path& path);
bool exists(const std::filesystem::path& path);

/// A regular file open for reading, by any number of threads at once.
class ByteFile {
 public:
  /// Throws UserError where there is no such file, MachineError where it cannot be opened.
  explicit ByteFile(const std::filesystem::path& path);
  ~ByteFile();
  ByteFile(const ByteFile&) = delete;
  ByteFile& operator=(const ByteFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Throws UserError where the bytes are not all in the file, MachineError where they cannot be read.
  void read_at(std::uint64_t offset, void* destination, std::size_t bytes) const;
  void read_at(std::uint64_t offset, std::span<std::byte> destination) const {
    read_at(offset, destination.data(), destination.size());
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Reads a stretch of a file, or of memory, from its beginning on. Taking more than is left throws a UserError that
/// begins with `origin`.
class ByteCursor {
 public:
  /// Bytes [begin, end) of `file`, which outlives the cursor. Positions count from the beginning of the file.
  ByteCursor(const ByteFile& file, std::uint64_t begin, std::uint64_t end, std::string origin);
  /// `memory` outlives the cursor.
  ByteCursor(std::span<const std::byte> memory, std::string origin);

  const std::string& origin() const { return origin_; }
  std::uint64_t position() const { return window_begin_ + at_; }
  std::uint64_t remaining() const { return end_ - position(); }

  void take(void* destination, std::size_t bytes);
  /// A number as it stands, little-endian.
  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    take(&value, sizeof value);
    return value;
  }
  /// So many bytes as text, of whatever encoding; allocates only once it is known that they are there.
  std::string take_text(std::uint64_t bytes);
  void skip(std::uint64_t bytes);

 private:
  void need(std::uint64_t bytes) const;
  void refill();

  const ByteFile* file_ = nullptr;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> window_;  ///< what is in memory, from window_begin_ on
  std::uint64_t window_begin_ = 0;
  std::size_t at_ = 0;  ///< in window_
  std::uint64_t end_ = 0;
  std::string origin_;
};

}  // namespace furlong::foreign
