#pragma once
// Ends the wait for ranks that do not arrive, once a stop was requested.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "communication/job_store/store_client.h"

namespace furlong {

/// A request to stop that becomes due after some time. Until then the ranks may still connect, and stop in order.
/// Copies share the time of the request.
class ConnectStop {
 public:
  /// `requested` returns whether a stop is requested; empty: never.
  ConnectStop(std::function<bool()> requested, std::chrono::milliseconds patience);
  bool is_possible() const { return static_cast<bool>(requested_); }
  /// Returns true once `requested` has been true for `patience`. Call it at intervals, from one thread at a time.
  bool is_due() const;

 private:
  std::function<bool()> requested_;
  std::chrono::milliseconds patience_;
  std::shared_ptr<std::optional<std::chrono::steady_clock::time_point>> since_;
};

/// While this object exists, a thread reports a stop that becomes due to all ranks, as this rank's failure. The
/// operations of the store, and those that watch it for faults, then throw.
class StopReporter {
 public:
  /// The store must outlive this object.
  StopReporter(StoreClient& store, ConnectStop stop, std::string reason);
  ~StopReporter();
  StopReporter(const StopReporter&) = delete;
  StopReporter& operator=(const StopReporter&) = delete;

 private:
  void run();

  StoreClient& store_;
  const ConnectStop stop_;
  const std::string reason_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace furlong
