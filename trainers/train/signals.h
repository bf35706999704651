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

/// While it lives, SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the program; a second SIGINT ends it at
/// once. One inside the life of another changes nothing. One thread makes them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// The signal that asked to stop, or 0.
  static int received();
  /// Throws StoppedBySignal where there was one: for loops that write the file at `path`, which is then not to appear.
  static void stop_writing(const std::filesystem::path& path);
};

}  // namespace furlong
