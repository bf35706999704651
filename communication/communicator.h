#pragma once
// What processes of a job say to each other, whatever carries it: NCCL between GPUs, Gloo between CPUs, nothing where
// there is one process. The functions check their arguments; an engine does the rest.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/tensor.h"

namespace furlong {

/// How the ranks' elements become one. Integers wrap around; a NaN of any rank stays one (not in NCCL's maximum and
/// minimum).
enum class Reduction : std::uint8_t { sum, maximum, minimum };
/// "sum", "maximum", "minimum"
const char* name_of(Reduction reduction);

/// An operation that was issued and may still be under way. It holds its tensors until it is done, also where this
/// handle is dropped.
class Work {
 public:
  /// An engine's side of it.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };
  /// Nothing to wait for.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// What is launched from here on, on the stream that the operation was issued with, finds its result: on the CPU this
  /// blocks, on a GPU the stream waits. Throws MachineError, naming the rank and host at fault where they are known,
  /// when the operation failed; that may be asked for more than once, from any thread.
  void wait() const {
    if (state_) state_->wait();
  }
  /// True once wait() would return, or throw, at once.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// One message of Communicator::exchange().
struct Message {
  enum class Direction : std::uint8_t { send, receive } direction;
  Tensor values;
  int peer;

  static Message send(Tensor values, int peer) { return {Direction::send, std::move(values), peer}; }
  static Message receive(Tensor values, int peer) { return {Direction::receive, std::move(values), peer}; }
};

/// `size` ranks. Operations return at once and run behind what was launched on `stream` before, one after the other in
/// the order in which they were issued. All ranks issue the same collective operations in the same order with the same
/// shapes and dtypes, from one thread each. Tensors are contiguous, on the stream's device, of any dtype, empty ones
/// included; nobody writes to an operation's tensors, or reads its results, before wait().
///
/// For one size the order of additions is fixed by ranks and positions, never by time: the same inputs give the same
/// bits, on all ranks. A sum in bfloat16 is formed in float32 at each rank that it passes and rounded there: size - 1
/// roundings.
///
/// An operation that fails breaks the communicator: all later ones throw the same. Wrong arguments throw ContractError
/// where they are issued.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "none", "gloo", "nccl"
  virtual const char* engine() const = 0;

  /// Every rank gets the reduction of all ranks' values, in their place.
  Work all_reduce(const Stream& stream, const Tensor& values, Reduction reduction = Reduction::sum);
  /// Of the reduction of all inputs (`size` times as many elements as `output`), rank r gets the r-th part. `output`
  /// may be that part of `input`; the other parts are left as they are.
  Work reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                      Reduction reduction = Reduction::sum);
  /// All ranks' inputs, one behind the other in `output`. `input` may be its own part of `output`.
  Work all_gather(const Stream& stream, const Tensor& input, const Tensor& output);
  /// Every rank gets root's values.
  Work broadcast(const Stream& stream, const Tensor& values, int root);
  /// Messages between two ranks meet in the order in which they were issued. Each is done when the other side has its
  /// part done: two ranks that both send before they receive wait for ever; exchange() is for that.
  Work send(const Stream& stream, const Tensor& values, int peer);
  Work receive(const Stream& stream, const Tensor& values, int peer);
  /// All these messages at once, as one operation.
  Work exchange(const Stream& stream, std::vector<Message> messages);
  /// Done when all ranks have come to it.
  Work barrier(const Stream& stream);

  /// From any thread: operations that are under way, waiting or yet to come throw MachineError with this reason, at
  /// once. The first reason stays. Values that an operation was to change are undefined.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Throws MachineError with the reason where the communicator is broken. For whoever has waited for the device, and
  /// not by Work::wait(), and is about to believe what it finds there; on a CPU Work::wait() itself tells.
  virtual void check() const {}

 protected:
  /// Throws ContractError unless 0 <= rank < size.
  Communicator(int rank, int size);

 private:
  virtual Work do_all_reduce(const Stream& stream, const Tensor& values, Reduction reduction) = 0;
  virtual Work do_reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                                 Reduction reduction) = 0;
  virtual Work do_all_gather(const Stream& stream, const Tensor& input, const Tensor& output) = 0;
  virtual Work do_broadcast(const Stream& stream, const Tensor& values, int root) = 0;
  virtual Work do_exchange(const Stream& stream, std::vector<Message> messages) = 0;
  virtual Work do_barrier(const Stream& stream) = 0;

  int rank_, size_;
};

/// The engine "none": one process, whose operations are copies at most. Any device.
std::unique_ptr<Communicator> make_single_process();

}  // namespace furlong
