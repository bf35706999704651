#include "framework/core/standard_streams.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

namespace furlong {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds forever{-1};

std::atomic<bool> needs_readers = true;
std::atomic<std::int64_t> lost = 0;

/// What the last message of a standard stream left behind.
struct LastMessage {
  /// Then the next ones do not wait: a paused reader costs one second, not one for each line.
  std::atomic<bool> was_lost = false;
  std::atomic<bool> is_fragment = false;  ///< lost after its first bytes
};
LastMessage last_of_output, last_of_error;

/// Opens the file of a descriptor once more, without blocking. Returns -1 if the system refuses that.
int open_again(int descriptor) noexcept {
  std::array<char, 32> path{"/proc/self/fd/"};
  char* const number = path.data() + std::strlen(path.data());
  *std::to_chars(number, path.data() + path.size() - 1, descriptor).ptr = '\0';
  return ::open(path.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/// Writes to a pipe or a terminal. poll() alone is not enough: a terminal is ready when one byte fits, and a
/// longer write then blocks.
ssize_t write_to_reader(int descriptor, std::string_view text, bool is_terminal) noexcept {
  // Opened again, the placeholder of a closed descriptor would take everything.
  if (const int flags = ::fcntl(descriptor, F_GETFL); flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  const int own = open_again(descriptor);
  if (own < 0) {
    pollfd watched{descriptor, POLLOUT, 0};
    if (::poll(&watched, 1, 0) != 0)  // ready, or poll() is refused (ConfinedProcess)
      return ::write(descriptor, text.data(), std::min<std::size_t>(text.size(), is_terminal ? 1 : PIPE_BUF));
    errno = EAGAIN;
    return -1;
  }
  const ssize_t count = ::write(own, text.data(), text.size());
  const int error = errno;
  ::close(own);
  errno = error;
  return count;
}

/// Removes from `text` what was written. Returns whether that is all of it.
bool write_rest(int descriptor, std::string_view& text, milliseconds patience) noexcept {
  constexpr milliseconds pause{5};
  milliseconds waited{0};
  while (!text.empty()) {
    const ssize_t count = write_without_waiting(descriptor, text);
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {
      if (patience >= milliseconds{0} && waited >= patience) return false;
      ::poll(nullptr, 0, static_cast<int>(pause.count()));
      waited += pause;
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

ssize_t write_without_waiting(int descriptor, std::string_view text) noexcept {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return -1;
  if (S_ISSOCK(status.st_mode)) return ::send(descriptor, text.data(), text.size(), MSG_DONTWAIT);
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))
    return write_to_reader(descriptor, text, S_ISCHR(status.st_mode));
  return ::write(descriptor, text.data(), text.size());
}

bool write_patiently(int descriptor, std::string_view text, milliseconds patience) noexcept {
  return write_rest(descriptor, text, patience);
}

void continue_without_readers() noexcept {
  std::signal(SIGPIPE, SIG_IGN);
  needs_readers = false;
}

bool write_message(int descriptor, std::string_view text) noexcept {
  LastMessage& last = descriptor == STDERR_FILENO ? last_of_error : last_of_output;
  const milliseconds patience = needs_readers ? forever : milliseconds{last.was_lost ? 0 : 1000};
  std::string_view rest = text;
  bool written = !last.is_fragment || write_patiently(descriptor, "\n", patience);
  if (written) {
    written = write_rest(descriptor, rest, patience);
    last.is_fragment = !written && rest.size() < text.size();
  }
  last.was_lost = !written;
  if (!written && text.ends_with('\n')) ++lost;
  return written;
}

std::int64_t lost_messages() noexcept { return lost; }

void add_lost_messages(std::int64_t count) noexcept { lost += count; }

}  // namespace furlong
