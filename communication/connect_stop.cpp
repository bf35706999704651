#include "communication/connect_stop.h"

#include <utility>

#include "communication/job_store/socket.h"

namespace furlong {

using std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds poll_interval{50};

}  // namespace

ConnectStop::ConnectStop(std::function<bool()> requested, std::chrono::milliseconds patience)
    : requested_(std::move(requested)),
      patience_(patience),
      since_(std::make_shared<std::optional<steady_clock::time_point>>()) {}

bool ConnectStop::is_due() const {
  if (!requested_ || !requested_()) return false;
  if (!*since_) *since_ = steady_clock::now();
  return steady_clock::now() - **since_ >= patience_;
}

StopReporter::StopReporter(StoreClient& store, ConnectStop stop, std::string reason)
    : store_(store), stop_(std::move(stop)), reason_(std::move(reason)) {
  if (!stop_.is_possible()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

StopReporter::~StopReporter() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void StopReporter::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, poll_interval, [&] { return done_; })) {
    if (!stop_.is_due()) continue;
    lock.unlock();
    store_.report_fault(reason_);
    return;
  }
}

}  // namespace furlong
