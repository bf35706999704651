#pragma once
// Files that are either whole or absent: written under another name in the same folder, flushed, renamed, and the
// folder flushed too.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace furlong {

/// A new name in the folder of `path` for a file under construction: ".<name>.<random>.partial". No file of that name
/// exists.
std::filesystem::path partial_path(const std::filesystem::path& path);
/// The files under construction for `path`, of any process, and those that a killed process has left.
std::vector<std::filesystem::path> partial_files(const std::filesystem::path& path);

/// Makes earlier renames, creations and removals in `directory` survive a power loss. Throws MachineError.
void flush_directory(const std::filesystem::path& directory);

/// A file under construction. Readers see the old file, or none, until commit(); without commit() the destructor
/// removes what was written. One process at a time writes a file: a second one is refused when it begins, as far as the
/// file system has locks (flock). There, what a killed writer has left is removed by the next one. A symbolic link is
/// followed; only a regular file is replaced. Throws UserError where the place is at fault (no such folder, no
/// permission, a folder, device or pipe of that name, another writer), MachineError where the machine is (disk full,
/// read-only file system, I/O error); after either, the old file is untouched and nothing of the new one stays.
class AtomicFile {
 public:
  /// Creates the file under construction with permissions 0666 less the umask.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends at the end of what write() wrote before.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes at byte `offset`, whatever write() has done.
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Flushes the file to disk, so that little is left in commit() that can fail.
  void flush();
  /// Flushes the file, renames it to its place, and flushes the folder. Called once, last.
  void commit();
  /// Closes and removes what was written. Does nothing after commit().
  void discard() noexcept;

  /// Open for reading and writing; for libraries that write by themselves. Stays the property of this object.
  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;     // as given
  std::filesystem::path target_;   // with symbolic links followed
  std::filesystem::path partial_;  // holds what is written until commit()
  int descriptor_ = -1;
  int slot_ = -1;  // among those that a signal removes (interrupted_writes.h)
  std::uint64_t end_ = 0;
};

/// Replaces `path` by a file holding `text`. Throws as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Throws what a failed system call on `path` means: UserError when the place is at fault, MachineError otherwise.
/// `action` completes "cannot ...", for example "write"; `error` is an errno value.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view action, int error);

}  // namespace furlong
