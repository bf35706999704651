#pragma once
// Atomic file replacement: a file is either complete or absent. It is written under a temporary name in the same
// folder, flushed and renamed; then the folder is flushed.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/file_error.h"

namespace furlong {

/// Returns an unused name for a partial file in the folder of `path`: ".<name>.<random>.partial".
std::filesystem::path partial_path(const std::filesystem::path& path);
/// Returns all partial files of `path`: those being written by any process and those left by killed processes.
std::vector<std::filesystem::path> partial_files(const std::filesystem::path& path);
/// Removes the partial files of any path in `folder` that killed writers have left. A file that a process is writing
/// stays. On file systems without locks (flock) all files stay, with a warning, because any may have a writer. Throws
/// UserError or MachineError if the folder cannot be read.
void remove_abandoned_partial_files(const std::filesystem::path& folder);

/// fsync(2), which signals do not interrupt. Returns 0, or the value of errno.
int flush_descriptor(int descriptor);

/// Makes earlier renames, creations and removals in `directory` durable across a power loss. Throws MachineError.
void flush_directory(const std::filesystem::path& directory);

/// Throws UserError if `output`, given by `option`, is one of the files that are read; - is standard input.
void refuse_replacing_inputs(const std::vector<std::string>& inputs, const std::filesystem::path& output,
                             const char* option = "--output");

/// Throws UserError if `output` exists, unless `overwrite`.
void refuse_existing(const std::filesystem::path& output, bool overwrite);

/// Another process is writing the file.
class FileInUse : public UserError {
 public:
  using UserError::UserError;
};

/// Writes a file atomically. Readers see the old file, or none, until commit(). Without commit() the destructor removes
/// the partial file.
/// One process at a time writes a file: on file systems with locks the constructor refuses a second writer, and removes
/// what a killed writer has left; on others, and about another user's files that it may not open, it warns. A symbolic
/// link is followed; only a regular file is replaced, and none without `overwrite`: the constructor and commit() then
/// refuse an existing file. Throws UserError if the path is at fault: a missing folder, no permission, a folder, device
/// or pipe of that name, a file that may not be replaced; FileInUse if there is another writer. Throws MachineError if
/// the machine is: disk full, read-only file system, I/O error. After a throw the old file is unchanged and the partial
/// file is removed; only if commit() cannot flush the folder, the new file may have replaced the old one.
class AtomicFile {
 public:
  /// Creates the partial file with permissions 0666 less the umask, and none for others that the replaced file lacks.
  /// From here on other writers are refused.
  explicit AtomicFile(std::filesystem::path path, bool overwrite = true);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends after the bytes of the previous write().
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes at byte `offset`, independently of write().
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Flushes the file to disk in advance, so that little in commit() can fail.
  void flush();
  /// Flushes the file, renames it to its final name, and flushes the folder. Call once, last. After a throw without
  /// `overwrite` there is no file of that name, unless another program has created it.
  void commit();
  /// As commit(), for the only or last output of a command: signals that come later end the program with status 0
  /// (output_is_complete).
  void commit_last();
  /// Closes and removes the partial file. Does nothing after commit().
  void discard() noexcept;

  /// Returns the descriptor, open for reading and writing, for libraries that write to it. This object owns it.
  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool create_partial();
  mode_t mode_of_partial() const;
  void keep_mode() const;
  bool is_written_file(const std::filesystem::path& path) const;

  std::filesystem::path path_;     // as given
  std::filesystem::path target_;   // symbolic links resolved
  std::filesystem::path partial_;  // the partial file, until commit()
  bool overwrite_;
  int descriptor_ = -1;
  int slot_ = -1;  // registration for removal by a signal (interrupted_writes.h)
  std::uint64_t end_ = 0;
};

/// Atomically replaces `path` by a file that contains `text`. Throws as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace furlong
