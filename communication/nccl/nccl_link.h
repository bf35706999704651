#pragma once
// NCCL's own communicator, and how it is spoken to without ever being stuck in it.
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

/// A call of NCCL's did not work; in its own words.
class NcclError : public Error {
 public:
  using Error::Error;
};

/// Connected when it is constructed; see make_nccl_communicator. A library from before 2.14 knows no calls that do not
/// block: it connects in a thread that is left behind when that takes too long, and abort() does not wait for a call
/// that hangs.
class NcclLink {
 public:
  using Handle = nccl::Communicator*;

  /// `queue`: a stream of the device, for which NCCL is going to work.
  NcclLink(StoreClient& store, const NcclOptions& options, const Stream& queue);
  /// Aborts unless it was closed.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Makes the calls, and returns when NCCL has put their work on its stream. From one thread. Throws NcclError where
  /// one failed or NCCL was aborted meanwhile.
  void run(const std::function<nccl::Result(Handle)>& calls);
  /// Several calls as one: NCCL runs their work together.
  static nccl::Result grouped(const std::function<nccl::Result()>& calls);
  /// What NCCL has met since, in its words; nothing where all is well. From any thread.
  std::optional<std::string> problem();
  /// Ends what is under way, whatever it waits for. From any thread; may take its time.
  void abort() noexcept;
  /// All ranks at the same time, with nothing under way; aborts where that takes longer than `patience`.
  void close(std::chrono::milliseconds patience) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  nccl::UniqueId meet();
  void connect(const nccl::UniqueId& id);
  void connect_blocking(const nccl::UniqueId& id);
  /// Throws MachineError on the job's fault, or when the time is over.
  void check_connecting(Clock::time_point end);
  [[noreturn]] void fail_connecting(const std::string& text);
  nccl::Result state_now(Handle handle);
  std::string text_of(nccl::Result result, Handle handle) const;

  StoreClient& store_;
  const NcclOptions options_;
  const Stream queue_;
  std::mutex mutex_;  // NCCL's calls are one thread's at a time
  std::atomic<Handle> handle_ = nullptr;
};

}  // namespace furlong
