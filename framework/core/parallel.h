#pragma once
// Loops over threads. OpenMP in ordinary builds, so that our loops and oneDNN's share one team; a pool of our own under
// sanitizers.
#include <algorithm>
#include <cstdint>
#include <functional>

namespace furlong {

/// Threads that parallel loops use. Set once at start: 0 means all cores that this process may use (affinity, container
/// quota). FURLONG_POOL_THREADS overrides 0. Of the whole process, not of a stream: OpenMP's team is one for all, and
/// our loops and oneDNN share it.
void set_thread_count(int threads);
int thread_count();

/// Calls body(task) once for each task in [0, tasks), in any order, on up to thread_count() threads; a nested call runs
/// in its caller's thread. The first exception thrown is thrown again here, after all threads are done.
void parallel_tasks(std::int64_t tasks, const std::function<void(std::int64_t)>& body);

/// Number (0 .. thread_count() - 1) of the calling thread inside parallel_tasks; 0 outside. For per-thread scratch.
int thread_index();

/// Splits [0, n) into ranges of at least `grain` and calls body(begin, end) for each. The split does not depend on the
/// values.
template <class Body>
void parallel_ranges(std::int64_t n, std::int64_t grain, const Body& body) {
  if (n <= 0) return;
  const std::int64_t ranges = std::clamp<std::int64_t>(n / std::max<std::int64_t>(grain, 1), 1, thread_count());
  if (ranges == 1) {
    body(std::int64_t{0}, n);
    return;
  }
  const std::function<void(std::int64_t)> task = [&](std::int64_t range) {
    body(n * range / ranges, n * (range + 1) / ranges);
  };
  parallel_tasks(ranges, task);
}

}  // namespace furlong
