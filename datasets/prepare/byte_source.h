#pragma once
// Reads a file or standard input, and decompresses gzip, xz and zstd.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace furlong {

/// With which some editors begin UTF-8 files. It is not text.
inline constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// Returns a file's name without .gz, .xz or .zst at its end.
std::string_view without_compression(std::string_view file_name);
/// Returns the extension in lower case (".csv"), before that of a compression. Empty if the name has none.
std::string extension_of(std::string_view file_name);
/// Whether the extension is one of FASTA.
bool is_fasta_name(std::string_view file_name);

/// Reads from beginning to end in constant memory. gzip, xz and zstd are detected by their first bytes, not by the file
/// name. Files of several members (as bgzip, pigz and cat write them) are read to the end of the last member. Throws
/// UserError if the file cannot be opened, if compressed data are damaged or truncated, and for bzip2 and zip,
/// which are not supported. Throws MachineError if a system call fails.
class ByteSource {
 public:
  /// Opens `path`; "-" is standard input.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Reads up to `capacity` bytes into `destination`. Returns fewer only at the end, and 0 when nothing is left.
  std::size_t read(void* destination, std::size_t capacity);

  /// Returns the path, or "standard input", as messages name it.
  const std::string& name() const;
  /// Returns the number of bytes read from the file so far, before decompression.
  std::uint64_t file_bytes() const;
  /// Returns the 64-bit XXH3 of these bytes.
  std::uint64_t file_hash() const;
  /// Returns "none", "gzip", "xz" or "zstd".
  const char* compression() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
