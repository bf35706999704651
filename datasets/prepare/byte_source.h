#pragma once
// The bytes of a file or of standard input, uncompressed on the way when they are gzip or xz.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace furlong {

/// Reads from front to back in constant memory. gzip and xz are known by their first bytes, whatever the name; files of
/// several members (as bgzip, pigz and cat make them) are read to the end of the last. Throws UserError for what cannot
/// be opened, for damaged or truncated compressed data, and for bzip2, zstd and zip, which are not read; MachineError
/// where the system fails.
class ByteSource {
 public:
  /// `path` may be "-" for standard input.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Fills `destination` with up to `capacity` bytes, less only at the end; 0 when nothing is left.
  std::size_t read(void* destination, std::size_t capacity);

  /// The path, or "standard input"; what errors call it.
  const std::string& name() const;
  /// Bytes taken from the file so far, compressed as they are, and their XXH3 (64 bits).
  std::uint64_t file_bytes() const;
  std::uint64_t file_hash() const;
  /// "none", "gzip" or "xz".
  const char* compression() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
