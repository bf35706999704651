#pragma once
// Gloo's own functions on connections of their own: what they take without the thread, the watch and the names of
// make_gloo_communicator(). For measurements alone: a rank that is lost ends an operation by Gloo's timeout, half a
// minute.
#include <cstdint>
#include <functional>
#include <memory>

#include "communication/process_group.h"

namespace furlong {

class RawGloo {
 public:
  /// All processes of the group at the same time, two or more. Throws MachineError where they cannot be connected.
  explicit RawGloo(const ProcessGroup& group);
  ~RawGloo();
  RawGloo(const RawGloo&) = delete;
  RawGloo& operator=(const RawGloo&) = delete;

  /// Seconds that `times` calls of `action` take, one behind the other, in a thread of its own; all processes begin
  /// together. Throws MachineError where one fails.
  double time(std::int64_t times, const std::function<void()>& action);

  // From within time(). Tensors are contiguous, on the CPU; all_reduce sums up float32 in a ring.
  void all_reduce(const Tensor& values);
  /// `input` is this rank's part of `output`.
  void all_gather(const Tensor& output);
  void broadcast(const Tensor& values, int root);
  void barrier();
  /// To `to` and from `from`, at once; a rank below zero: nothing.
  void exchange(const Tensor& sent, int to, const Tensor& received, int from);

 private:
  class Context;
  std::shared_ptr<Context> context_;
  std::uint32_t operations_ = 0;
};

}  // namespace furlong
