#include "communication/last_line.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <exception>
#include <string>
#include <thread>

#include "communication/job_store/socket.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

/// For a reader that is busy.
constexpr int poll_patience = 200;  // ms
/// For a write that hangs although poll() allowed it (a file on a hanging file system).
constexpr std::chrono::milliseconds write_patience{1000};

/// Ends the process after write_patience, whatever the calling thread does.
void end_soon(int status) noexcept {
  try {
    const SignalsBlocked blocked;
    std::thread([status] {
      std::this_thread::sleep_for(write_patience);
      ::_exit(status);
    }).detach();
  } catch (const std::exception&) {  // no thread can be started
  }
}

}  // namespace

void end_with_last_line(std::string_view message, int status) noexcept {
  if (message.empty()) ::_exit(status);
  end_soon(status);
  try {
    // A pipe that poll() reports as writable accepts PIPE_BUF bytes without blocking. stdio is not used: a thread that
    // is blocked in a write may hold its lock.
    constexpr std::size_t spare = 32;  // for "error: ", the mark of a truncated text, and the end of the line
    const std::string line = "error: " + foreign::single_line(message, PIPE_BUF - spare) + "\n";
    pollfd entry{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&entry, 1, poll_patience) > 0 && (entry.revents & POLLOUT) != 0) {
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    }
  } catch (const std::exception&) {  // no memory
  }
  ::_exit(status);
}

}  // namespace furlong
