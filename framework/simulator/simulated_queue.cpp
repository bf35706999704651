#include "framework/simulator/simulated_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "framework/core/error.h"
#include "framework/simulator/simulator_record.h"

namespace furlong {
namespace {

class SimulatedQueue final : public GpuQueue, public SimulatedQueueHandle {
 public:
  SimulatedQueue() {
    enqueue = [](SimulatedQueueHandle* queue, void (*work)(void*), void* argument) {
      static_cast<SimulatedQueue*>(queue)->put([work, argument] { work(argument); });
    };
    thread_ = std::thread([this] { run(); });
  }
  ~SimulatedQueue() override {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  SimulatedQueue(const SimulatedQueue&) = delete;
  SimulatedQueue& operator=(const SimulatedQueue&) = delete;

  Stream stream() const override {
    return {Device{DeviceType::simulated, 0},
            const_cast<SimulatedQueueHandle*>(static_cast<const SimulatedQueueHandle*>(this))};
  }
  void put(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return leaving_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool leaving_ = false;
  std::thread thread_;  // last, because it uses the other members
};

/// One recorded place in a queue. An event that is recorded again refers to another mark; waiters keep the first one.
class Mark {
 public:
  void signal() {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  bool reached() {
    const std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

class SimulatedEvent final : public GpuEvent {
 public:
  void record(const Stream& stream) override {
    check_not_recording();
    const auto mark = std::make_shared<Mark>();
    {
      const std::lock_guard lock(mutex_);
      mark_ = mark;
    }
    enqueue_on_simulated_queue(stream, [mark] { mark->signal(); });
  }
  void wait(const Stream& stream) override {
    check_not_recording();
    if (const auto mark = latest()) enqueue_on_simulated_queue(stream, [mark] { mark->wait(); });
  }
  bool done() override {
    const auto mark = latest();
    return !mark || mark->reached();
  }

 private:
  static void check_not_recording() {
    if (simulator::is_recording()) throw CaptureError("cannot record an event that two streams wait for");
  }
  std::shared_ptr<Mark> latest() {
    const std::lock_guard lock(mutex_);
    return mark_;
  }

  std::mutex mutex_;
  std::shared_ptr<Mark> mark_;  // null: never recorded
};

SimulatedQueueHandle at_once{[](SimulatedQueueHandle*, void (*work)(void*), void* argument) { work(argument); }};

}  // namespace

std::unique_ptr<GpuQueue> make_simulated_queue() { return std::make_unique<SimulatedQueue>(); }
std::unique_ptr<GpuEvent> make_simulated_event() { return std::make_unique<SimulatedEvent>(); }

SimulatedQueueHandle* simulated_queue_of(const Stream& stream) {
  return stream.handle == nullptr ? &at_once : static_cast<SimulatedQueueHandle*>(stream.handle);
}

void enqueue_on_simulated_queue(const Stream& stream, std::function<void()> work) {
  if (stream.handle == nullptr) return work();
  static_cast<SimulatedQueue*>(simulated_queue_of(stream))->put(std::move(work));
}

void wait_for_simulated_queue(const Stream& stream) {
  Mark mark;
  enqueue_on_simulated_queue(stream, [&mark] { mark.signal(); });
  mark.wait();
}

}  // namespace furlong
