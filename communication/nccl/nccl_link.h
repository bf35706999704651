#pragma once
// Owns NCCL's communicator and calls it without ever blocking inside NCCL.
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "communication/nccl/nccl_communicator.h"
#include "framework/core/error.h"
#include "framework/cuda/engine/nccl.h"

namespace furlong {

/// An NCCL call failed. The message is NCCL's own.
class NcclError : public Error {
 public:
  using Error::Error;
};

/// Connects in its constructor; see make_nccl_communicator. abort() does not wait for a call that hangs.
class NcclLink {
 public:
  using Handle = nccl::Communicator*;

  /// `queue` is the device's stream that NCCL will use.
  NcclLink(StoreClient& store, const NcclOptions& options, const Stream& queue);
  /// Aborts unless close() was called.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Makes the calls, and returns when NCCL has enqueued their work on its stream. Call it from one thread. Throws
  /// NcclError if a call fails or NCCL is aborted meanwhile.
  void run(const std::function<nccl::Result(Handle)>& calls);
  /// Runs several calls as one NCCL group.
  static nccl::Result grouped(const std::function<nccl::Result()>& calls);
  /// Returns NCCL's asynchronous error, or nothing. May be called from any thread.
  std::optional<std::string> problem();
  /// Ends all running operations. May be called from any thread, and may take seconds.
  void abort() noexcept;
  /// Shuts NCCL down. All ranks call it at the same time, with no operation running. Aborts after `patience`.
  void close(std::chrono::milliseconds patience) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  nccl::UniqueId wait_for_ranks();
  void connect(const nccl::UniqueId& id);
  /// Throws MachineError if the job has a fault or the time limit is reached.
  void check_connecting(Clock::time_point end);
  [[noreturn]] void fail_connecting(const std::string& text);
  nccl::Result state_now(Handle handle);
  std::string text_of(nccl::Result result, Handle handle) const;

  StoreClient& store_;
  const NcclOptions options_;
  const Stream queue_;
  std::mutex mutex_;  // one thread at a time may call NCCL
  std::atomic<Handle> handle_ = nullptr;
};

}  // namespace furlong
