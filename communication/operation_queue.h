#pragma once
// A backend's worker thread: runs operations in the order in which they were issued, while the caller continues. A
// second thread, the watcher, supervises the running operation, which may wait for a lost peer.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "communication/communicator.h"

namespace furlong {

/// Runs a backend's operations in its own thread, one at a time. Thread-safe.
class OperationQueue {
 public:
  /// The backend's callbacks. They run in the queue's threads or in the caller of abort(), never with the queue's lock
  /// held. They must not throw.
  struct Hooks {
    /// Called at intervals while an operation runs. Returns a reason to abort, or nothing.
    std::function<std::optional<std::string>(std::uint64_t operation, const std::string& name)> watch;
    /// Makes the running operation and all later ones throw as soon as possible. Called once.
    std::function<void()> interrupt;
    /// Converts an operation's exception to the reason that this and all later operations fail with.
    std::function<std::string(const std::exception& error)> explain;
  };

  /// Starts the two threads. Throws std::system_error if the system denies one.
  explicit OperationQueue(Hooks hooks);
  /// Aborts unfinished operations and blocks until both threads have ended.
  ~OperationQueue();
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Enqueues `action`, which runs after all operations submitted earlier, and returns immediately. An exception of
  /// `action` fails this and all later operations; Work::wait() throws it as MachineError. `name` ("all_reduce") is for
  /// messages. The action and what it captures are destroyed before its Work completes, unless abort() completes it.
  Work submit(std::string name, std::function<void()> action);

  /// Makes running, queued and future operations throw MachineError with `reason`. The first reason is kept.
  void abort(const std::string& reason) noexcept;
  /// Blocks up to `patience` for abort(). Returns the reason, or nothing at the time limit.
  std::optional<std::string> wait_for_abort(std::chrono::milliseconds patience) const;

 private:
  struct Operation;
  /// Lets both threads end. Returns whether an operation runs or waits.
  bool leave();
  void run();
  void watch();

  const Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable work_changed_;           ///< for the runner
  mutable std::condition_variable watch_changed_;  ///< for the watcher and for wait_for_abort()
  std::deque<std::shared_ptr<Operation>> waiting_;
  std::shared_ptr<Operation> running_;
  std::uint64_t started_ = 0;  ///< number of operations started
  std::optional<std::string> reason_;
  bool leaving_ = false;
  bool watcher_sleeps_ = false;
  std::thread runner_, watcher_;
};

}  // namespace furlong
