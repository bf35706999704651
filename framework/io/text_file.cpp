#include "framework/io/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"

namespace furlong {
namespace {

std::string read_all(const std::filesystem::path& path, int descriptor, std::uint64_t max_bytes) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_file_error(path, "read", errno);
  if (S_ISDIR(status.st_mode)) throw_file_error(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode))
    throw UserError("{}: cannot read: it is a device, pipe or socket; give the path of a regular file", path.string());
  if (static_cast<std::uint64_t>(status.st_size) > max_bytes)
    throw UserError("{}: has {} bytes, expected at most {}", path.string(), status.st_size, max_bytes);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(descriptor, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error(path, "read", errno);
    if (count == 0) break;  // the file was truncated meanwhile
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_file_error(path, "read", errno);
  try {
    std::string text = read_all(path, descriptor, max_bytes);
    ::close(descriptor);
    return text;
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace furlong
