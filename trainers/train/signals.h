#pragma once
#include <filesystem>

#include "framework/core/error.h"

namespace furlong {

/// A signal has stopped what leaves nothing behind when it is half done.
class StoppedBySignal : public Error {
 public:
  template <class... Args>
  explicit StoppedBySignal(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  int exit_status() const noexcept override { return 3; }
};

/// While it lives, SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless ignored) ask the program to stop instead of ending it; a
/// second SIGINT ends it at once. Handlers belong to the process, and so does what they note: one inside the life of
/// another sees the same requests. One thread makes them.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  bool received() const;
  /// Throws StoppedBySignal where one was received: for loops that write the file at `path`, which is then not to
  /// appear.
  void check_before_writing(const std::filesystem::path& path) const;
};

}  // namespace furlong
