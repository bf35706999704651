#include "communication/launch/line_relay.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "framework/core/standard_streams.h"

namespace furlong {

void LinePrefixer::add(std::string_view piece, std::string& out) {
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    const std::size_t taken = std::min(std::min(newline, piece.size()), kLongestLine - partial_.size());
    partial_.append(piece.substr(0, taken));
    piece.remove_prefix(taken);
    const bool ends = !piece.empty() && piece.front() == '\n';
    if (ends) piece.remove_prefix(1);
    if (!ends && partial_.size() < kLongestLine) return;
    // The newline after a line that was split exactly at the limit does not make an empty line.
    if (!(ends && partial_.empty() && broken_)) out.append(prefix_).append(partial_).push_back('\n');
    partial_.clear();
    broken_ = !ends;
  }
}

void LinePrefixer::finish(std::string& out) {
  if (partial_.empty()) return;
  out.append(prefix_).append(partial_).push_back('\n');
  partial_.clear();
}

bool LineQueue::ready() const {
  pollfd watched{descriptor_, POLLOUT, 0};
  return poll(&watched, 1, 0) > 0;
}

bool LineQueue::write_some() {
  std::size_t written = 0;
  while (written < waiting_.size()) {
    const std::string_view rest = std::string_view(waiting_).substr(written);
    std::size_t length = std::min<std::size_t>(rest.size(), PIPE_BUF);
    if (const std::size_t newline = rest.substr(0, length).rfind('\n'); newline != std::string_view::npos)
      length = newline + 1;
    const ssize_t count = write_without_waiting(descriptor_, rest.substr(0, length));
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    } else {
      waiting_.erase(0, written);
      discard();
      return written > 0;
    }
  }
  waiting_.erase(0, written);
  return written > 0;
}

void LineQueue::discard() {
  add_lost_messages(std::count(waiting_.begin(), waiting_.end(), '\n'));
  waiting_.clear();
}

}  // namespace furlong
