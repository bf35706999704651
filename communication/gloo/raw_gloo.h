#pragma once
// Gloo's own collectives on separate connections, without the thread, watchdog and rank names of
// make_gloo_communicator(). For benchmarks only: a lost rank ends an operation by Gloo's timeout of 30 s.
#include <cstdint>
#include <functional>
#include <memory>

#include "communication/process_group.h"

namespace furlong {

class RawGloo {
 public:
  /// Connects all ranks of the group (two or more), which call it at the same time. Throws MachineError if the
  /// connection fails.
  explicit RawGloo(const ProcessGroup& group);
  ~RawGloo();
  RawGloo(const RawGloo&) = delete;
  RawGloo& operator=(const RawGloo&) = delete;

  /// Returns the seconds that `times` consecutive calls of `action` take in a separate thread. All ranks start
  /// together. Throws MachineError if a call fails.
  double time(std::int64_t times, const std::function<void()>& action);

  // Operations to call from within time(). Tensors are contiguous and on the CPU. all_reduce sums float32 in a ring.
  void all_reduce(const Tensor& values);
  /// The input is this rank's part of `output`.
  void all_gather(const Tensor& output);
  void broadcast(const Tensor& values, int root);
  void barrier();
  /// Sends to rank `to` and receives from rank `from`, concurrently. A negative rank skips that direction.
  void exchange(const Tensor& sent, int to, const Tensor& received, int from);

 private:
  class Context;
  std::shared_ptr<Context> context_;
  std::uint32_t operations_ = 0;
};

}  // namespace furlong
