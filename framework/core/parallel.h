#pragma once
// Parallel loops over threads. Ordinary builds use OpenMP, so that our loops and oneDNN share one team of threads.
// Sanitizer builds use Furlong's own thread pool.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace furlong {

/// A number of threads that the environment requests.
struct RequestedThreads {
  std::string variable;  ///< its name
  int count = 0;         ///< at least 1
};
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

/// Reads OMP_NUM_THREADS, in this process's environment by default, or FURLONG_POOL_THREADS, with which sanitizer runs
/// give Furlong's own pool more threads than oneDNN. The first number of a list such as "4,2" counts; a variable
/// without a number from 1 to 4096 counts as not set.
std::optional<RequestedThreads> requested_threads(const ReadVariable& variable = nullptr);

/// Sets the number of threads of parallel loops for the whole process; call once at start. 0 means requested_threads(),
/// or otherwise all cores that this process may use (affinity, container quota). The number is not per stream because
/// our loops and oneDNN share one OpenMP team. Throws MachineError if the system refuses the threads.
void set_thread_count(int threads);
/// Returns the number of threads of parallel loops, at least 1.
int thread_count();

/// Calls body(task) once for each task in [0, tasks), in any order, on up to thread_count() threads. A nested call runs
/// in its caller's thread. Blocks until all tasks are done, then rethrows the first exception.
void parallel_tasks(std::int64_t tasks, const std::function<void(std::int64_t)>& body);

/// Returns the index of the calling thread within parallel_tasks, 0 .. thread_count() - 1; 0 outside. For per-thread
/// scratch.
int thread_index();

/// Splits [0, n) into ranges of at least `grain` elements and calls body(begin, end) for each, like parallel_tasks();
/// blocks until all are done. n <= 0 does nothing. The split depends only on n,
/// `grain` and the number of threads.
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
