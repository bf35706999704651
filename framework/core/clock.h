#pragma once
#include <chrono>

namespace furlong {

/// The clock for durations: monotonic, so setting the computer's time does not affect it.
using Clock = std::chrono::steady_clock;

/// Returns the seconds since `begin`.
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace furlong
