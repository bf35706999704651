#pragma once
#include <filesystem>

#include "framework/core/error.h"

namespace furlong {

/// A signal stopped a command that leaves no partial output.
class StoppedBySignal : public Error {
 public:
  template <class... Args>
  explicit StoppedBySignal(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  int exit_status() const noexcept override { return 3; }
};

/// While this object exists, SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless ignored) request a stop instead of ending the
/// program; a second SIGINT ends it at once. Handlers and requests are global to the process, so nested objects share
/// them. Create it from one thread only.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  /// Returns whether a signal has requested a stop.
  bool received() const;
  /// Throws StoppedBySignal if a signal was received: for loops that write the file at `path`, which is then not
  /// created.
  void check_before_writing(const std::filesystem::path& path) const;
};

}  // namespace furlong
