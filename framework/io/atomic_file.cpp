#include "framework/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "framework/core/error.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

const char* hint_for(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check its permissions";
    case EISDIR:
      return "give the path of a file";
    case ENOTDIR:
      return "a part of the path is a file";
    default:
      return "give a shorter path";
  }
}

}  // namespace

void throw_file_error(const fs::path& path, std::string_view action, int error) {
  const std::string reason = std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
      throw UserError("{}: cannot {}: {}; {}", path.string(), action, reason, hint_for(error));
    case EFBIG:
      throw MachineError(
          "{}: cannot {}: {}; raise the limit of a file's size (ulimit -f), or write to another file system",
          path.string(), action, reason);
    case ENOSPC:
    case EDQUOT:
      throw MachineError("{}: cannot {}: {}; free some space and try again", path.string(), action, reason);
    default:
      throw MachineError("{}: cannot {}: {}", path.string(), action, reason);
  }
}

fs::path partial_path(const fs::path& path) { return fs::path(path.string() + ".partial"); }

void flush_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(directory, "open the folder", errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some network file systems cannot flush a folder and say EINVAL; they order renames themselves.
  if (error != 0 && error != EINVAL && error != ENOTSUP)
    throw MachineError("{}: cannot flush the folder: {}", directory.string(), std::generic_category().message(error));
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), partial_(partial_path(path_)) {
  require(path_.has_filename(), "AtomicFile: '{}' names no file", path_.string());
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) throw_file_error(path_, "write", EISDIR);
  descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_file_error(path_, "write", errno);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(partial_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  write_at(end_, data, bytes);
  end_ += bytes;
}

void AtomicFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  require(descriptor_ >= 0, "{}: written to after commit or a failure", path_.string());
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const int error = done < 0 ? errno : ENOSPC;
      discard();
      throw_file_error(path_, "write", error);
    }
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::commit() {
  require(descriptor_ >= 0, "{}: committed twice, or after a failure", path_.string());
  // fsync and close both report writes that the kernel had only promised; the rename must not happen after a lost one.
  int error = ::fsync(descriptor_) == 0 ? 0 : errno;
  if (::close(std::exchange(descriptor_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(partial_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(partial_.c_str());
    throw_file_error(path_, "write", error);
  }
  flush_directory(folder_of(path_));
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace furlong
