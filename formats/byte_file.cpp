#include "formats/byte_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "framework/io/atomic_file.h"

namespace furlong::foreign {

bool is_directory(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

ByteFile::ByteFile(const std::filesystem::path& path) : path_(path.string()) {
  // Without O_NONBLOCK, opening a named pipe waits for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw_file_error(path, "read", errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) throw_file_error(path, "read", error);
  throw UserError("{}: is {}, expected a file", path_, S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
}

ByteFile::~ByteFile() { ::close(descriptor_); }

void ByteFile::read_at(std::uint64_t offset, void* destination, std::size_t bytes) const {
  if (!within(offset, bytes, size_)) {
    throw UserError(
        "{}: truncated or damaged: bytes {} to {} are required, but the file has {}; download or copy it again", path_,
        offset, offset + bytes, size_);
  }
  auto* to = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    const ssize_t done = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_file_error(path_, "read", errno);
    if (done == 0)
      throw UserError("{}: ends at byte {} but had {} bytes when it was opened; check that no other program writes it",
                      path_, offset, size_);
    to += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

ByteCursor::ByteCursor(const ByteFile& file, std::uint64_t begin, std::uint64_t end, std::string origin)
    : file_(&file), window_begin_(begin), end_(end), origin_(std::move(origin)) {
  require(begin <= end && end <= file.size(), "{}: a cursor over [{}, {}) exceeds the {} bytes of the file", origin_,
          begin, end, file.size());
}

ByteCursor::ByteCursor(std::span<const std::byte> memory, std::string origin)
    : window_(memory), end_(memory.size()), origin_(std::move(origin)) {}

void ByteCursor::need(std::uint64_t bytes) const {
  if (bytes > remaining()) {
    throw UserError(
        "{}: truncated or damaged: {} bytes are required at byte {}, but {} remain; download or copy it again", origin_,
        bytes, position(), remaining());
  }
}

void ByteCursor::refill() {
  constexpr std::uint64_t window_bytes = 1 << 16;
  window_begin_ = position();
  buffer_.resize(std::min(window_bytes, end_ - window_begin_));
  file_->read_at(window_begin_, buffer_);
  window_ = buffer_;
  at_ = 0;
}

void ByteCursor::take(void* destination, std::size_t bytes) {
  need(bytes);
  auto* to = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    if (at_ == window_.size()) refill();
    const std::size_t part = std::min(bytes, window_.size() - at_);
    std::memcpy(to, window_.data() + at_, part);
    to += part;
    at_ += part;
    bytes -= part;
  }
}

std::string ByteCursor::take_text(std::uint64_t bytes) {
  need(bytes);
  std::string text(bytes, '\0');
  take(text.data(), text.size());
  return text;
}

void ByteCursor::skip(std::uint64_t bytes) {
  need(bytes);
  if (bytes <= window_.size() - at_) {
    at_ += bytes;
    return;
  }
  window_begin_ = position() + bytes;
  window_ = {};
  at_ = 0;
}

}  // namespace furlong::foreign
