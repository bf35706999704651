#include "communication/communicator.h"

#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

void check_tensor(const char* operation, const char* what, const Stream& stream, const Tensor& tensor) {
  require(tensor.defined(), "{}: {} is undefined", operation, what);
  require(tensor.is_contiguous(), "{}: {} {} is not contiguous", operation, what, tensor.shape().text());
  require(tensor.device() == stream.device, "{}: {} is on {}, but the stream is on {}", operation, what,
          tensor.device().text(), stream.device.text());
}

/// Checks that `whole` has one part of the size of `part` for each rank, and that `part` shares memory only with this
/// rank's part of `whole`.
void check_parts(const char* operation, const Tensor& whole, const Tensor& part, int rank, int size) {
  require(whole.dtype() == part.dtype() && whole.elements() == size * part.elements(),
          "{} over {} ranks: sizes or dtypes of {} {} and {} {} do not match", operation, size, name_of(whole.dtype()),
          whole.shape().text(), name_of(part.dtype()), part.shape().text());
  const auto* first = static_cast<const char*>(whole.address());
  const auto* begin = static_cast<const char*>(part.address());
  const bool apart = begin + part.bytes() <= first || first + whole.bytes() <= begin;
  require(apart || begin == first + rank * part.bytes(), "{}: the tensors overlap outside the part of rank {}",
          operation, rank);
}

}  // namespace

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::maximum:
      return "maximum";
    case Reduction::minimum:
      return "minimum";
  }
  return "unknown";
}

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  require(0 <= rank && rank < size, "communicator: rank {} of {}, expected 0 <= rank < size", rank, size);
}

Work Communicator::all_reduce(const Stream& stream, const Tensor& values, Reduction reduction) {
  check_tensor("all_reduce", "values", stream, values);
  return do_all_reduce(stream, values, reduction);
}

Work Communicator::reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                                  Reduction reduction) {
  check_tensor("reduce_scatter", "input", stream, input);
  check_tensor("reduce_scatter", "output", stream, output);
  check_parts("reduce_scatter", input, output, rank_, size_);
  return do_reduce_scatter(stream, input, output, reduction);
}

Work Communicator::all_gather(const Stream& stream, const Tensor& input, const Tensor& output) {
  check_tensor("all_gather", "input", stream, input);
  check_tensor("all_gather", "output", stream, output);
  check_parts("all_gather", output, input, rank_, size_);
  return do_all_gather(stream, input, output);
}

Work Communicator::broadcast(const Stream& stream, const Tensor& values, int root) {
  check_tensor("broadcast", "values", stream, values);
  require(0 <= root && root < size_, "broadcast: root rank {} of {}, expected 0 <= root < size", root, size_);
  return do_broadcast(stream, values, root);
}

Work Communicator::send(const Stream& stream, const Tensor& values, int peer) {
  return exchange(stream, {Message::send(values, peer)});
}

Work Communicator::receive(const Stream& stream, const Tensor& values, int peer) {
  return exchange(stream, {Message::receive(values, peer)});
}

Work Communicator::exchange(const Stream& stream, std::vector<Message> messages) {
  for (const Message& message : messages) {
    const char* operation = message.direction == Message::Direction::send ? "send" : "receive";
    check_tensor(operation, "values", stream, message.values);
    require(0 <= message.peer && message.peer < size_ && message.peer != rank_,
            "{} on rank {}: peer {} of {} ranks, expected another rank", operation, rank_, message.peer, size_);
  }
  return do_exchange(stream, std::move(messages));
}

Work Communicator::barrier(const Stream& stream) { return do_barrier(stream); }

}  // namespace furlong
