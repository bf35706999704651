#include "communication/operation_queue.h"

#include <system_error>
#include <utility>

#include "communication/job_store/socket.h"
#include "framework/core/error.h"
#include "framework/core/trace.h"

namespace furlong {
namespace {

constexpr std::chrono::milliseconds watch_interval{50};

}  // namespace

struct OperationQueue::Operation final : Work::State {
  Operation(std::string name_given, std::function<void()> action_given)
      : name(std::move(name_given)), action(std::move(action_given)) {}

  void wait() override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_done; });
    if (reason) throw MachineError("{} stopped: {}", name, *reason);
  }
  bool done() override {
    const std::lock_guard lock(mutex);
    return is_done;
  }
  /// Completes the operation. Only the first call has an effect, because abort() does not wait for the thread.
  void finish(const std::optional<std::string>& why) {
    const std::lock_guard lock(mutex);
    if (std::exchange(is_done, true)) return;
    reason = why;
    changed.notify_all();
  }

  const std::string name;
  std::function<void()> action;  ///< used by the runner only, once it runs
  const trace::Details issued = trace::start_flow();
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  std::optional<std::string> reason;
};

OperationQueue::OperationQueue(Hooks hooks) : hooks_(std::move(hooks)) {
  // A write to a connection that the peer has closed raises SIGPIPE in the writing thread. With the signal blocked, the
  // write returns an error instead.
  const SignalsBlocked blocked;
  runner_ = std::thread([this] { run(); });
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {  // the host's limit on threads
    leave();
    runner_.join();
    throw;
  }
}

bool OperationQueue::leave() {
  const std::lock_guard lock(mutex_);
  leaving_ = true;
  work_changed_.notify_all();
  watch_changed_.notify_all();
  return running_ || !waiting_.empty();
}

OperationQueue::~OperationQueue() {
  if (leave()) abort("the communicator was closed before the operation was done");
  runner_.join();
  watcher_.join();
}

Work OperationQueue::submit(std::string name, std::function<void()> action) {
  auto operation = std::make_shared<Operation>(std::move(name), std::move(action));
  std::optional<std::string> reason;
  {
    const std::lock_guard lock(mutex_);
    reason = reason_;
    if (!reason) {
      waiting_.push_back(operation);
      work_changed_.notify_all();
    }
  }
  if (reason) operation->finish(reason);
  return Work(operation);
}

void OperationQueue::abort(const std::string& reason) noexcept {
  std::deque<std::shared_ptr<Operation>> failed;
  {
    const std::lock_guard lock(mutex_);
    if (reason_) return;
    reason_ = reason;
    failed.swap(waiting_);
    if (running_) failed.push_front(running_);
    watch_changed_.notify_all();
  }
  for (const auto& operation : failed) operation->finish(reason);
  hooks_.interrupt();
}

std::optional<std::string> OperationQueue::wait_for_abort(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  watch_changed_.wait_for(lock, patience, [&] { return reason_.has_value(); });
  return reason_;
}

void OperationQueue::run() {
  trace::name_thread("communication");
  std::unique_lock lock(mutex_);
  for (;;) {
    work_changed_.wait(lock, [&] { return leaving_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    running_ = std::move(waiting_.front());
    waiting_.pop_front();
    ++started_;
    if (watcher_sleeps_) watch_changed_.notify_all();
    const std::shared_ptr<Operation> operation = running_;
    lock.unlock();

    std::optional<std::string> failure;
    try {
      const trace::Span span("operation", operation->name, operation->issued);
      operation->action();
    } catch (const std::exception& error) {
      failure = hooks_.explain(error);
    }
    operation->action = nullptr;
    if (failure) abort(*failure);

    lock.lock();
    running_ = nullptr;
    lock.unlock();
    operation->finish(failure);
    lock.lock();
  }
}

void OperationQueue::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    watcher_sleeps_ = true;  // short consecutive operations do not wake the watcher
    watch_changed_.wait(lock, [&] { return leaving_ || (running_ && !reason_); });
    watcher_sleeps_ = false;
    watch_changed_.wait_for(lock, watch_interval, [&] { return leaving_ || reason_.has_value(); });
    if (leaving_) return;
    if (!running_ || reason_) continue;
    const std::uint64_t operation = started_;
    const std::string name = running_->name;
    lock.unlock();
    const std::optional<std::string> reason = hooks_.watch(operation, name);
    if (reason) abort(*reason);
    lock.lock();
  }
}

}  // namespace furlong
