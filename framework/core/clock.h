#pragma once
#include <chrono>

namespace furlong {

/// What durations are measured with: it never goes back when the computer's time is set.
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace furlong
