#pragma once

namespace furlong {

/// While it lives, SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the program; a second SIGINT ends it at once. One inside the
/// life of another changes nothing. One thread makes them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// The signal that asked to stop, or 0.
  static int received();
};

}  // namespace furlong
