#pragma once
// How what a step reads comes to a GPU while the step before it is still at work.
#include <memory>
#include <vector>

#include "framework/core/gpu_engine.h"
#include "framework/core/tensor.h"

namespace furlong {

/// One tensor of a step's input: numbers on the host, and the int32 tensor that is to hold them. Empty numbers: an
/// undefined tensor.
struct InputPart {
  const std::vector<std::int32_t>* values = nullptr;
  Shape shape;
  Tensor* tensor = nullptr;
};

/// Puts the numbers into the tensors: into those that are there, where their shapes fit, so that they stay where they
/// are; into new ones elsewhere. The host waits for the copies.
void put_on_device(const std::vector<InputPart>& parts, const Device& device);

/// The same by a queue of copies of its own, without waiting: send() begins the copy of a step's input, receive() puts
/// it in place.
///
/// There are two sets of a step's input on the device: the one that send() fills, in one piece, and the tensors that
/// the step reads, into which receive() copies it, device to device, in the order of the step's stream. A recorded step
/// finds its input where it was when it was recorded; the other way, a recording for each of two sets in turn, would
/// keep the memory of a whole step's activations twice, to save a copy of 4 bytes a token.
class InputQueue {
 public:
  explicit InputQueue(const Device& device);

  /// Begins to bring the numbers of `parts` to the device; their tensors are not looked at. What was sent and not
  /// received is forgotten.
  void send(const std::vector<InputPart>& parts);
  /// What was sent last, put into the tensors of `parts`, whose numbers have to be those of send(). They are not copied
  /// again.
  void receive(const std::vector<InputPart>& parts);

 private:
  Stream stream_;
  Tensor sent_;  // int32; outlives the copy to it
  std::unique_ptr<GpuUpload> upload_;
  bool waiting_ = false;  // sent and not received
};

}  // namespace furlong
