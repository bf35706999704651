#include "framework/core/parallel.h"

#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "framework/core/release_threads.h"

#ifndef FURLONG_THREAD_POOL
#include <omp.h>
#endif

namespace furlong {
namespace {

int default_threads() {
  if (const auto requested = requested_threads()) return requested->count;
  return read_machine().cpu.usable_cores();  // affinity and the container's CPU quota
}

int configured_threads = 0;

#ifndef FURLONG_THREAD_POOL
/// Starts OpenMP's threads if there are more than before. libgomp ends the process if the system has no thread for it,
/// so the same number of threads is started and joined first.
void start_openmp_threads(int threads) {
  static int started = 1;
  if (threads <= started) return;
  std::vector<std::thread> trial;
  std::promise<void> enough;
  const std::shared_future<void> all_started = enough.get_future().share();
  std::string reason;
  try {
    while (static_cast<int>(trial.size()) + 1 < threads) trial.emplace_back([all_started] { all_started.wait(); });
  } catch (const std::exception& error) {
    const auto* refused = dynamic_cast<const std::system_error*>(&error);
    reason = refused ? refused->code().message() : "out of memory";
  }
  enough.set_value();
  for (std::thread& thread : trial) thread.join();
  if (!reason.empty())
    throw MachineError(
        "cannot start {} threads: {}; use fewer (--threads, OMP_NUM_THREADS), or raise the limits of memory and "
        "processes (ulimit -v, "
        "-u)",
        threads, reason);
#pragma omp parallel num_threads(threads)
  {}
  started = threads;
}
#endif
thread_local int current_thread = 0;
thread_local bool inside_tasks = false;

/// Stores the first exception of a team and rethrows it in the caller.
class FirstException {
 public:
  template <class Body>
  void run(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!exception_) exception_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr exception_;
};

#ifdef FURLONG_THREAD_POOL
/// Worker threads that sleep between loops. The caller is worker 0.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
    FirstException first;
    {
      const std::lock_guard lock(mutex_);
      tasks_ = tasks;
      next_ = 0;
      body_ = &body;
      first_ = &first;
      busy_ = static_cast<int>(workers_.size());
      ++generation_;
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    lock.unlock();
    first.rethrow();
  }

 private:
  void drain(int thread) {
    current_thread = thread;
    inside_tasks = true;
    for (;;) {
      std::int64_t task;
      {
        const std::lock_guard lock(mutex_);
        if (next_ >= tasks_) break;
        task = next_++;
      }
      first_->run([&] { (*body_)(task); });
    }
    inside_tasks = false;
    current_thread = 0;
  }
  void work(int thread) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
        if (stopping_) return;
        seen = generation_;
      }
      if (thread < configured_threads)
        drain(thread);  // the pool keeps its initial size; set_thread_count() may request fewer later
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::int64_t tasks_ = 0, next_ = 0;
  const std::function<void(std::int64_t)>* body_ = nullptr;
  FirstException* first_ = nullptr;
  int busy_ = 0;
  std::uint64_t generation_ = 0;
  bool stopping_ = false;
};

std::mutex pool_mutex;
std::unique_ptr<Pool> current_pool;

Pool& pool() {
  const std::lock_guard lock(pool_mutex);
  if (!current_pool) current_pool = std::make_unique<Pool>(thread_count());
  return *current_pool;
}
#endif

void configure_threads(int threads) {
  configured_threads = threads;
#ifndef FURLONG_THREAD_POOL
  omp_set_num_threads(configured_threads);
#endif
}

}  // namespace

std::optional<RequestedThreads> requested_threads(const ReadVariable& variable) {
  for (const char* name : {"FURLONG_POOL_THREADS", "OMP_NUM_THREADS"}) {
    const char* const own = variable ? nullptr : std::getenv(name);
    const std::string text = variable ? variable(name).value_or("") : own ? own : "";
    const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
    int count = 0;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), count);
    const bool ends = end == text.data() + text.size() || *end == ',' || *end == ' ' || *end == '\t';
    if (error == std::errc() && ends && count >= 1 && count <= 4096) return RequestedThreads{name, count};
  }
  return std::nullopt;
}

void set_thread_count(int threads) {
  configure_threads(threads > 0 ? threads : default_threads());
#ifndef FURLONG_THREAD_POOL
  start_openmp_threads(configured_threads);
#endif
}

int thread_count() {
  if (configured_threads == 0) configure_threads(default_threads());
  return configured_threads;
}

void release_threads() {
#ifdef FURLONG_THREAD_POOL
  const std::lock_guard lock(pool_mutex);
  current_pool.reset();
#else
  omp_pause_resource_all(omp_pause_hard);
#endif
}

int thread_index() { return current_thread; }

void parallel_tasks(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  if (tasks <= 1 || thread_count() == 1 || inside_tasks) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
#ifdef FURLONG_THREAD_POOL
  pool().run(tasks, body);
#else
  FirstException first;
#pragma omp parallel num_threads(static_cast <int>(std::min <std::int64_t>(tasks, thread_count())))
  {
    current_thread = omp_get_thread_num();
    inside_tasks = true;
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < tasks; ++task) first.run([&] { body(task); });
    inside_tasks = false;
    current_thread = 0;
  }
  first.rethrow();
#endif
}

}  // namespace furlong
