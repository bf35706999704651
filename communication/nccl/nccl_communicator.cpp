#include "communication/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "communication/job_store/socket.h"
#include "communication/job_store/wait_notice.h"
#include "communication/nccl/nccl_link.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/gpu_recording.h"

namespace furlong {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds nccl_watch_interval{50};

std::string text_of(const char* operation, const Tensor& tensor) {
  return fmt::format("{} of {} {}", operation, name_of(tensor.dtype()), tensor.shape().text());
}

nccl::DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return nccl::DataType::float32;
    case DType::bfloat16:
      return nccl::DataType::bfloat16;
    case DType::float64:
      return nccl::DataType::float64;
    case DType::int32:
      return nccl::DataType::int32;
    case DType::uint8:
      return nccl::DataType::uint8;
  }
  throw ContractError("NCCL does not support dtype {}", name_of(dtype));
}

nccl::Reduction reduction_of(Reduction reduction) {
  return reduction == Reduction::sum       ? nccl::Reduction::sum
         : reduction == Reduction::maximum ? nccl::Reduction::maximum
                                           : nccl::Reduction::minimum;
}

/// The memory of a tensor, without owning it: recorded steps keep calls of NCCL longer than tensors.
struct Buffer {
  explicit Buffer(const Tensor& tensor)
      : address(tensor.address()),
        count(static_cast<std::size_t>(tensor.elements())),
        type(data_type(tensor.dtype())) {}

  void* address;
  std::size_t count;
  nccl::DataType type;
};

/// The reason that all operations fail with, once one has failed. Shared by the communicator and its operations, which
/// may outlive it.
class Failure {
 public:
  /// Sets the reason. Returns false if there already is one, which is kept.
  bool set(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (reason_) return false;
    reason_ = reason;
    changed_.notify_all();
    return true;
  }
  std::optional<std::string> reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  /// Waits for a reason that is certain to be set.
  std::string wait_for_reason() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reason_.has_value(); });
    return *reason_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<std::string> reason_;
};

class Operation final : public Work::State {
 public:
  Operation(std::shared_ptr<Failure> failure, std::unique_ptr<GpuEvent> event, const Stream& stream, std::string name,
            std::vector<Tensor> tensors)
      : failure_(std::move(failure)),
        event_(std::move(event)),
        stream_(stream),
        name_(std::move(name)),
        tensors_(std::move(tensors)) {}

  /// For WaitNotice.
  std::uint64_t id = 0, number = 0;
  const std::string& name() const { return name_; }

  /// Marks the operation as enqueued on NCCL's stream.
  void issued(const Stream& queue) {
    event_->record(queue);
    is_issued_ = true;
  }

  void wait() override {
    if (is_finished_) return;
    if (!is_issued_) throw MachineError("{} stopped: {}", name_, failure_->wait_for_reason());
    if (finish()) return;
    throw_if_broken();
    event_->wait(stream_);
    throw_if_broken();  // on the simulated device, the host has waited
    // The arena reuses memory in the order of the main stream, which now waits for the operation.
    if (stream_.handle == nullptr) release_tensors();
  }
  bool done() override { return is_finished_ || failure_->reason() || (is_issued_ && finish()); }

  /// Returns true if the operation completed before any failure; later failures do not affect it. May be called from
  /// any thread.
  bool finish() {
    if (is_finished_) return true;
    if (!event_->done() || failure_->reason()) return false;
    is_finished_ = true;
    release_tensors();
    return true;
  }

 private:
  void throw_if_broken() const {
    if (const auto reason = failure_->reason()) throw MachineError("{} stopped: {}", name_, *reason);
  }
  void release_tensors() {
    std::vector<Tensor> gone;
    const std::lock_guard lock(mutex_);
    gone.swap(tensors_);
  }

  const std::shared_ptr<Failure> failure_;
  const std::unique_ptr<GpuEvent> event_;
  const Stream stream_;  // the caller's stream
  const std::string name_;
  std::atomic<bool> is_issued_ = false, is_finished_ = false;
  std::mutex mutex_;
  std::vector<Tensor> tensors_;
};

/// An operation of a step that is being recorded. Each replay issues it anew, and waits for what it issued.
class RecordedOperation final : public Work::State {
 public:
  RecordedOperation(GpuRecording& recording, std::vector<Tensor> tensors)
      : recording_(&recording), tensors_(std::move(tensors)) {}

  /// The operation of the current replay.
  std::shared_ptr<Work> replayed() const { return replayed_; }

  /// Within the recording. From here on, recorded work may reuse the tensors' memory.
  void wait() override {
    require(GpuRecording::current() == recording_,
            "an operation of a recorded step was waited for after the recording");
    recording_->add_call([replayed = replayed_] { replayed->wait(); });
    tensors_.clear();
  }
  bool done() override { return false; }

 private:
  GpuRecording* const recording_;
  const std::shared_ptr<Work> replayed_ = std::make_shared<Work>();
  std::vector<Tensor> tensors_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(StoreClient& store, const NcclOptions& options)
      : Communicator(options.rank, options.size),
        store_(store),
        options_(options),
        engine_(require_gpu_engine(options.device.type)),
        queue_(engine_.make_queue(options.device.index)),
        ready_(engine_.make_event(options.device.index)),
        barrier_values_(Tensor::zeros({1}, DType::float32, options.device)),
        link_(store, options, queue_->stream()),
        notice_(store, {options.rank, options.size, "nccl " + options.name, options.notice_after, options.notice_every},
                [](int rank) { return fmt::format("rank {}", rank); }) {
    const SignalsBlocked blocked;
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclCommunicator() override {
    bool is_busy = false;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& operation : pending_) is_busy = !has_finished(*operation) || is_busy;
      leaving_ = true;
    }
    if (is_busy) failure_->set("the communicator was closed before the operation was done");
    changed_.notify_all();
    watchdog_.join();
    if (failure_->reason()) {
      link_.abort();
    } else {
      failure_->set("the communicator was closed");
      link_.close(options_.fault_patience);
    }
  }

  const char* engine() const override { return "nccl"; }

  // The watchdog aborts NCCL, which may take seconds.
  void abort(const std::string& reason) noexcept override {
    failure_->set(reason);
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void check() const override {
    if (const auto reason = failure_->reason()) throw MachineError("NCCL stopped: {}", *reason);
  }

 private:
  Work do_all_reduce(const Stream& stream, const Tensor& values, Reduction reduction) override {
    return issue(stream, text_of("all_reduce", values), {values}, values.elements() > 0,
                 [=, this, values = Buffer(values)](NcclLink::Handle handle) {
                   return nccl::table().all_reduce(values.address, values.address, values.count, values.type,
                                                   reduction_of(reduction), handle, native_queue());
                 });
  }

  Work do_reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                         Reduction reduction) override {
    return issue(stream, text_of("reduce_scatter", input), {input, output}, output.elements() > 0,
                 [=, this, input = Buffer(input), output = Buffer(output)](NcclLink::Handle handle) {
                   return nccl::table().reduce_scatter(input.address, output.address, output.count, input.type,
                                                       reduction_of(reduction), handle, native_queue());
                 });
  }

  Work do_all_gather(const Stream& stream, const Tensor& input, const Tensor& output) override {
    return issue(stream, text_of("all_gather", output), {input, output}, input.elements() > 0,
                 [this, input = Buffer(input), output = Buffer(output)](NcclLink::Handle handle) {
                   return nccl::table().all_gather(input.address, output.address, input.count, input.type, handle,
                                                   native_queue());
                 });
  }

  Work do_broadcast(const Stream& stream, const Tensor& values, int root) override {
    return issue(stream, text_of("broadcast", values), {values}, values.elements() > 0,
                 [=, this, values = Buffer(values)](NcclLink::Handle handle) {
                   return nccl::table().broadcast(values.address, values.address, values.count, values.type, root,
                                                  handle, native_queue());
                 });
  }

  Work do_barrier(const Stream& stream) override {
    return issue(stream, "barrier", {}, true, [this](NcclLink::Handle handle) {
      return nccl::table().all_reduce(barrier_values_.address(), barrier_values_.address(), 1, nccl::DataType::float32,
                                      nccl::Reduction::sum, handle, native_queue());
    });
  }

  Work do_exchange(const Stream& stream, std::vector<Message> messages) override {
    std::string name =
        messages.size() == 1 ? message_text(messages.front()) : fmt::format("exchange of {} messages", messages.size());
    std::vector<Tensor> tensors;
    std::vector<std::function<nccl::Result(NcclLink::Handle)>> calls;
    for (const Message& message : messages) {
      tensors.push_back(message.values);
      if (message.values.elements() == 0) continue;
      calls.emplace_back([this, values = Buffer(message.values), peer = message.peer,
                          sends = message.direction == Message::Direction::send](NcclLink::Handle handle) {
        const nccl::Table& table = nccl::table();
        return sends ? table.send(values.address, values.count, values.type, peer, handle, native_queue())
                     : table.receive(values.address, values.count, values.type, peer, handle, native_queue());
      });
    }
    const bool has_elements = !calls.empty();
    const auto begin_all = [calls = std::move(calls)](NcclLink::Handle handle) {
      return NcclLink::grouped([&] {
        nccl::Result worst = nccl::success;
        for (const auto& call : calls) {
          const nccl::Result result = call(handle);
          if (worst == nccl::success || worst == nccl::in_progress) worst = result;
        }
        return worst;
      });
    };
    return issue(stream, std::move(name), std::move(tensors), has_elements, begin_all, false);
  }

  static std::string message_text(const Message& message) {
    const bool sends = message.direction == Message::Direction::send;
    return fmt::format("{} {} rank {}", text_of(sends ? "send" : "receive", message.values), sends ? "to" : "from",
                       message.peer);
  }

  void* native_queue() const { return engine_.native_queue(queue_->stream()); }

  using Calls = std::function<nccl::Result(NcclLink::Handle)>;

  /// Enqueues an operation after the earlier work of the caller's stream and all earlier operations. While a step is
  /// recorded, its replays do so. `calls` must not own the tensors.
  Work issue(const Stream& stream, std::string name, std::vector<Tensor> tensors, bool has_elements, const Calls& calls,
             bool is_collective = true) {
    require(stream.device == options_.device, "NCCL communicator on {} was called with tensors on {}",
            options_.device.text(), stream.device.text());
    GpuRecording* const recording = GpuRecording::current();
    if (recording == nullptr) return enqueue(stream, name, std::move(tensors), has_elements, calls, is_collective);
    require(recording->device() == stream.device, "an operation on {} was called while a step of {} is recorded",
            stream.device.text(), recording->device().text());
    auto operation = std::make_shared<RecordedOperation>(*recording, std::move(tensors));
    recording->keep(operation);
    recording->add_call([=, this, replayed = operation->replayed()] {
      *replayed = enqueue(stream, name, {}, has_elements, calls, is_collective);
    });
    return Work(std::move(operation));
  }

  Work enqueue(const Stream& stream, std::string name, std::vector<Tensor> tensors, bool has_elements,
               const Calls& calls, bool is_collective) {
    const auto operation = std::make_shared<Operation>(failure_, engine_.make_event(options_.device.index), stream,
                                                       std::move(name), std::move(tensors));
    operation->id = ++issued_;
    if (is_collective) operation->number = ++collectives_;
    if (failure_->reason()) return Work(operation);
    ready_->record(stream);
    ready_->wait(queue_->stream());
    try {
      if (has_elements) link_.run(calls);
    } catch (const NcclError& error) {
      const std::lock_guard lock(mutex_);
      if (!call_error_) call_error_ = error.what();
      changed_.notify_all();
      return Work(operation);
    }
    operation->issued(queue_->stream());
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) front_since_ = steady_clock::now();
    pending_.push_back(operation);
    if (watchdog_sleeps_) changed_.notify_all();
    return Work(operation);
  }

  void watch() {
    native_queue();  // selects this thread's device; otherwise its CUDA calls would use device 0
    std::unique_lock lock(mutex_);
    while (!leaving_) {
      watchdog_sleeps_ = true;
      changed_.wait(lock, [&] { return leaving_ || call_error_ || !pending_.empty() || failure_->reason(); });
      watchdog_sleeps_ = false;
      changed_.wait_for(lock, nccl_watch_interval, [&] { return leaving_ || failure_->reason(); });
      if (!failure_->reason()) {
        forget_finished();
        const auto problem = call_error_;
        const auto front = pending_.empty() ? nullptr : pending_.front();
        lock.unlock();
        if (front && !store_.fault()) notice_.update({front->id, front->name(), front->number});
        if (const auto reason = reason_to_break_off(problem)) failure_->set(*reason);
        lock.lock();
      }
      if (!failure_->reason()) continue;
      lock.unlock();
      link_.abort();
      lock.lock();
      pending_.clear();
      changed_.wait(lock, [&] { return leaving_; });
    }
  }

  // Called with the lock held.
  void forget_finished() {
    while (!pending_.empty() && has_finished(*pending_.front())) {
      pending_.pop_front();
      front_since_ = steady_clock::now();
    }
  }

  /// Like finish(), but records an exception of the device as the reason of failure.
  bool has_finished(Operation& operation) noexcept {
    try {
      return operation.finish();
    } catch (const std::exception& error) {
      failure_->set(error.what());
      return false;
    }
  }

  // Called in the watchdog without the lock.
  std::optional<std::string> reason_to_break_off(std::optional<std::string> problem) {
    if (const auto fault = store_.fault()) return fault->message();
    if (!problem) problem = link_.problem();
    const auto now = steady_clock::now();
    if (problem) {
      if (!problem_since_) problem_since_ = now;
      // A lost rank shows as an NCCL error first. The store reports soon which rank it was.
      if (size() == 1 || now - *problem_since_ > options_.fault_patience) return "NCCL: " + *problem;
      return {};
    }
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || now - front_since_ < options_.operation_timeout) return {};
    return fmt::format(
        "nothing was received within {:.1f} s while all ranks were alive; the ranks wait for each other, perhaps in "
        "different operations",
        static_cast<double>(options_.operation_timeout.count()) / 1000);
  }

  StoreClient& store_;
  const NcclOptions options_;
  GpuEngine& engine_;
  const std::unique_ptr<GpuQueue> queue_;
  const std::unique_ptr<GpuEvent> ready_;  // end of the earlier work on the caller's stream
  const Tensor barrier_values_;            // for barriers
  NcclLink link_;
  WaitNotice notice_;                           // watchdog only
  std::uint64_t issued_ = 0, collectives_ = 0;  // operations so far
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> pending_;
  std::optional<std::string> call_error_;  // error of a failed call
  steady_clock::time_point front_since_;
  std::optional<steady_clock::time_point> problem_since_;  // watchdog only
  bool leaving_ = false, watchdog_sleeps_ = false;
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(StoreClient& store, const NcclOptions& options) {
  if (!options.device.is_gpu())
    throw UserError("parallel.backend: nccl needs GPUs, but this rank computes on {}", options.device.text());
  if (gpu_engine(options.device.type) == nullptr)
    throw UserError("parallel.backend: nccl needs GPU support, but this program was built without the CUDA toolkit");
  if (const std::string problem = nccl_missing(); !problem.empty())
    throw UserError("ranks on GPUs need NCCL: {}; install it (pip: nvidia-nccl-cu13 or -cu12), or use device: cpu",
                    problem);
  return std::make_unique<NcclCommunicator>(store, options);
}

}  // namespace furlong
