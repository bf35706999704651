#pragma once
// Copies the input of a training step to the GPU while the step before it computes.
#include <memory>
#include <vector>

#include "framework/core/gpu_engine.h"
#include "framework/core/tensor.h"

namespace furlong {

/// One tensor of a step's input: the values on the host, and the int32 tensor that receives them. Empty values give an
/// undefined tensor.
struct InputPart {
  const std::vector<std::int32_t>* values = nullptr;
  Shape shape;
  Tensor* tensor = nullptr;
};

/// Copies the values into the tensors. A tensor whose shape fits is reused, so its address stays; otherwise a new one
/// is allocated. The host waits for the copies.
void put_on_device(const std::vector<InputPart>& parts, const Device& device);

/// Copies input on a copy stream without waiting: send() starts the copy of a step's input, receive() moves it to its
/// place.
///
/// The device holds two sets of a step's input: the buffer that send() fills, in one piece, and the tensors that the
/// step reads. receive() copies from the first to the second, device to device, in the order of the step's stream. A
/// recorded step therefore finds its input at the recorded address. The alternative, one recording for each of two
/// alternating sets, would store a whole step's activations twice to save a copy of 4 bytes per token.
class InputQueue {
 public:
  /// `device` must be a GPU; throws ContractError otherwise. The queue copies to its main stream's tensors.
  explicit InputQueue(const Device& device);

  /// Starts to copy the values of `parts` to the device and returns; their tensors are not used. The host values are
  /// copied before it returns. Discards values that were sent but not received.
  void send(const std::vector<InputPart>& parts);
  /// Moves the values sent last into the tensors of `parts`, in the order of the main stream; the host does not wait.
  /// The host values of `parts` must be those of send(); they are not copied again. Throws ContractError without
  /// send().
  void receive(const std::vector<InputPart>& parts);

 private:
  Stream stream_;
  Tensor sent_;  // int32; outlives the copy to it
  std::unique_ptr<GpuUpload> upload_;
  bool waiting_ = false;  // sent and not received
};

}  // namespace furlong
