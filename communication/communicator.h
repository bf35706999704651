#pragma once
// Communication between the ranks of a job: point-to-point messages and collectives. Backends: NCCL between GPUs, Gloo
// between CPUs, "none" for a single rank. The public functions check their arguments; a backend does the transfer.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/tensor.h"

namespace furlong {

/// How the elements of all ranks are combined. Integer sums wrap around. A NaN of any rank propagates, except in NCCL's
/// maximum and minimum.
enum class Reduction : std::uint8_t { sum, maximum, minimum };
/// Returns "sum", "maximum" or "minimum".
const char* name_of(Reduction reduction);

/// Handle of an asynchronous operation. The operation holds its tensors until it completes, even if this handle is
/// dropped.
class Work {
 public:
  /// The backend's part of the handle.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };
  /// A completed operation: wait() returns immediately.
  Work() = default;
  /// A handle on a backend's operation; null: a completed operation.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Makes the result visible to later work on the stream that the operation was issued with. On a CPU this blocks the
  /// caller; on a GPU the stream waits. Throws MachineError if the operation failed, naming the failed rank and its
  /// host if they are known. May be called repeatedly and from any thread.
  void wait() const {
    if (state_) state_->wait();
  }
  /// Returns whether the operation has completed or failed; wait() then returns or throws immediately. Never blocks.
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// One message of Communicator::exchange().
struct Message {
  enum class Direction : std::uint8_t { send, receive } direction;
  Tensor values;
  int peer;

  /// `values` is shared, not copied: do not write to it before the operation's wait().
  static Message send(Tensor values, int peer) { return {Direction::send, std::move(values), peer}; }
  static Message receive(Tensor values, int peer) { return {Direction::receive, std::move(values), peer}; }
};

/// A group of `size` ranks. Operations return immediately. They run after the work issued earlier on `stream`, in the
/// order in which they were issued. All ranks must issue the same collectives in the same order, with the same shapes
/// and dtypes, each from one thread.
///
/// Tensors are contiguous, on the stream's device, of any dtype, and may be empty. Before wait(), the caller must not
/// write to an operation's tensors or read its results.
///
/// Results are deterministic: for one world size, the order of additions depends on ranks and positions only. Equal
/// inputs give equal bits on all ranks. A bfloat16 sum is computed in float32 and rounded at each rank that it passes:
/// size - 1 roundings.
///
/// A failed operation breaks the communicator: all later operations throw the same error. Invalid arguments throw
/// ContractError at the call.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns the backend's name: "none", "gloo" or "nccl".
  virtual const char* engine() const = 0;

  /// Replaces `values` on every rank with the reduction over all ranks.
  Work all_reduce(const Stream& stream, const Tensor& values, Reduction reduction = Reduction::sum);
  /// Reduces `input` (`size` times as many elements as `output`) over all ranks and writes part r to rank r's `output`.
  /// `output` may alias this rank's part of `input`; the other parts stay unchanged.
  Work reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                      Reduction reduction = Reduction::sum);
  /// Concatenates the inputs of all ranks, in rank order, in `output`. `input` may alias this rank's part of `output`.
  Work all_gather(const Stream& stream, const Tensor& input, const Tensor& output);
  /// Copies root's values to every rank.
  Work broadcast(const Stream& stream, const Tensor& values, int root);
  /// Sends or receives one message. Messages between two ranks match in the order in which they were issued. An
  /// operation completes when the peer's matching operation completes. Two ranks that both send before they receive
  /// deadlock; use exchange() instead.
  Work send(const Stream& stream, const Tensor& values, int peer);
  Work receive(const Stream& stream, const Tensor& values, int peer);
  /// Runs all messages concurrently, as one operation.
  Work exchange(const Stream& stream, std::vector<Message> messages);
  /// Completes when all ranks have issued it. Like every operation it returns immediately: wait() on the result.
  Work barrier(const Stream& stream);

  /// Makes all running, queued and future operations throw MachineError with `reason`, immediately. May be called from
  /// any thread. The first reason is kept. The outputs of interrupted operations are undefined.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// Throws MachineError with the reason if the communicator is broken. Call it after waiting for the device by other
  /// means than Work::wait(), before using results. On a CPU, Work::wait() reports the failure itself.
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

/// Returns the backend "none" for a single rank, on any device. Its operations copy at most.
std::unique_ptr<Communicator> make_single_process();

}  // namespace furlong
