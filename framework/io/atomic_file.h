#pragma once
// Files that are either whole or absent: written beside their place, flushed, renamed, and the folder flushed too.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace furlong {

/// Where a file is written until it is whole: "<path>.partial".
std::filesystem::path partial_path(const std::filesystem::path& path);

/// Makes earlier renames, creations and removals in `directory` survive a power loss. Throws MachineError.
void flush_directory(const std::filesystem::path& directory);

/// A file under construction. Readers see the old file, or none, until commit(); without commit() the destructor
/// removes the partial file. Throws UserError where the place is at fault (no such folder, no permission, a folder of
/// that name), MachineError where the machine is (disk full, read-only file system, I/O error); after either, the old
/// file is untouched and no partial file stays.
class AtomicFile {
 public:
  /// Creates (or empties) the partial file with permissions 0666 less the umask.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends at the end of what write() wrote before.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes at byte `offset`, whatever write() has done.
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Flushes the file, renames it to its place, and flushes the folder. Called once, last.
  void commit();
  /// Closes and removes the partial file. Does nothing after commit().
  void discard() noexcept;

  /// Open for reading and writing; for libraries that write by themselves. Stays the property of this object.
  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  int descriptor_ = -1;
  std::uint64_t end_ = 0;
};

/// Replaces `path` by a file holding `text`. Throws as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Throws what a failed system call on `path` means: UserError when the place is at fault, MachineError otherwise.
/// `action` completes "cannot ...", for example "write"; `error` is an errno value.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view action, int error);

}  // namespace furlong
