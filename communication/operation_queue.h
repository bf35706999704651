#pragma once
// An engine's own thread: operations run in it one after the other, in the order in which they were issued, beside what
// their issuer goes on to compute. A second thread watches over the one that runs, which may wait for peers that are no
// more.
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

class OperationQueue {
 public:
  /// What the engine adds. Called from the queue's threads or from abort()'s caller, never with its lock held; they
  /// must not throw.
  struct Hooks {
    /// Every now and then while an operation (its number, its name) runs for long: a reason to abort(), or nothing.
    std::function<std::optional<std::string>(std::uint64_t operation, const std::string& name)> watch;
    /// Makes the operation that runs throw, and all later ones, as soon as it can. Once.
    std::function<void()> interrupt;
    /// What an operation's exception means: the reason that operations fail with from there on.
    std::function<std::string(const std::exception& error)> explain;
  };

  explicit OperationQueue(Hooks hooks);
  /// Aborts what is not done.
  ~OperationQueue();
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Runs `action` behind all others. `name` ("all_reduce") is for messages. What the action holds is let go before its
  /// Work is done.
  Work submit(std::string name, std::function<void()> action);

  /// Operations that are under way, waiting or yet to come throw MachineError with this reason. The first reason stays.
  void abort(const std::string& reason) noexcept;
  /// Waits for abort(): the reason, or nothing when the time is over.
  std::optional<std::string> wait_for_abort(std::chrono::milliseconds patience) const;

 private:
  struct Operation;
  void run();
  void watch();

  const Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable work_changed_;           ///< for the runner
  mutable std::condition_variable watch_changed_;  ///< for the watcher, and for who waits for abort()
  std::deque<std::shared_ptr<Operation>> waiting_;
  std::shared_ptr<Operation> running_;
  std::uint64_t started_ = 0;  ///< operations so far
  std::optional<std::string> reason_;
  bool leaving_ = false;
  bool watcher_sleeps_ = false;
  std::thread runner_, watcher_;
};

}  // namespace furlong
