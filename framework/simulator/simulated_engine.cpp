// The engine of the simulated GPU. It uses host memory; a kernel has finished when its launch returns.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/gpu_blocks.h"
#include "framework/core/gpu_engine.h"
#include "framework/simulator/simulated_queue.h"
#include "framework/simulator/simulator_record.h"

namespace furlong {
namespace {

class SimulatedEngine final : public GpuEngine, public GpuBlocks {
 public:
  int device_count() override { return 1; }
  std::string unavailable(int index) override {
    return index == 0 ? "" : fmt::format("simulated device {} does not exist: there is one, number 0", index);
  }
  GpuDescription describe(int) override {
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    // Each process has its own simulated GPU.
    return {"simulated GPU",
            80,
            4,
            sysconf(_SC_PHYS_PAGES) * page,
            sysconf(_SC_AVPHYS_PAGES) * page,
            fmt::format("process {}", getpid())};
  }

  void* reserve(int, std::int64_t bytes) override {
    void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw MachineError("cannot reserve {} MiB of address space for tensors ({}); check the limit (ulimit -v)",
                         bytes >> 20, std::strerror(errno));
    }
    add_range(memory, bytes);
    return memory;
  }
  void release(int, void* base, std::int64_t bytes) noexcept override {
    remove_range(base);
    munmap(base, static_cast<std::size_t>(bytes));
  }
  /// The host commits pages on first access.
  std::int64_t back(int, void*, std::int64_t, std::int64_t to) override { return to; }

  void* allocate(int, std::int64_t bytes) override {
    void* const block = ::operator new(static_cast<std::size_t>(bytes), block_alignment, std::nothrow);
    if (block == nullptr)
      throw MachineError("out of memory on the simulated GPU: the host cannot allocate {} MiB; free some memory",
                         bytes >> 20);
    add_range(block, bytes);
    return block;
  }
  void deallocate(int, void* block) noexcept override {
    remove_range(block);
    ::operator delete(block, block_alignment);
  }

  void copy(const Stream& stream, void* target, const void* source, std::int64_t bytes) override {
    if (bytes == 0) return;
    const bool on_device = is_device_memory(target) && is_device_memory(source);
    if (simulator::is_recording() && !on_device) throw CaptureError("cannot record a copy to or from host memory");
    enqueue(stream, [=] { std::memmove(target, source, static_cast<std::size_t>(bytes)); });
    if (!on_device) wait_for_simulated_queue(stream);
  }
  std::unique_ptr<GpuUpload> make_upload(int) override { return std::make_unique<Upload>(); }
  void fill_zero(const Stream& stream, void* target, std::int64_t bytes) override {
    if (bytes > 0) enqueue(stream, [=] { std::memset(target, 0, static_cast<std::size_t>(bytes)); });
  }
  void synchronize(const Stream& stream) override {
    if (simulator::is_recording()) throw CaptureError("cannot record a wait for the device");
    wait_for_simulated_queue(stream);
  }

  void begin_capture(const Stream&) override { simulator::begin_recording(); }
  std::unique_ptr<GpuGraph> end_capture(const Stream&) override {
    std::vector<std::function<void()>> work = simulator::end_recording();
    return work.empty() ? nullptr : std::make_unique<RecordedWork>(std::move(work));
  }
  void abandon_capture(const Stream&) noexcept override {
    if (simulator::is_recording()) simulator::end_recording();
  }

  std::unique_ptr<GpuQueue> make_queue(int) override { return make_simulated_queue(); }
  std::unique_ptr<GpuEvent> make_event(int) override { return make_simulated_event(); }
  void* native_queue(const Stream& stream) override { return simulated_queue_of(stream); }

 private:
  /// As late as a device may be: a copy arrives only when it is waited for. From begin() until then its target holds
  /// garbage.
  class Upload final : public GpuUpload {
   public:
    void* host(std::int64_t bytes) override {
      arrive();
      if (static_cast<std::int64_t>(host_.size()) < bytes) host_.resize(static_cast<std::size_t>(bytes));
      return host_.data();
    }
    void begin(void* target, std::int64_t bytes) override {
      require(bytes >= 0 && bytes <= static_cast<std::int64_t>(host_.size()),
              "copy of {} bytes from a host buffer of {} bytes", bytes, host_.size());
      require(!being_read_, "the copy would overwrite data that work may still read: call used() after wait()");
      arrive();  // in the order of the queue
      if (bytes > 0) std::memset(target, nonsense, static_cast<std::size_t>(bytes));
      target_ = target;
      bytes_ = bytes;
    }
    void wait(const Stream&) override {
      if (simulator::is_recording()) throw CaptureError("cannot record a wait for a copy from the host");
      arrive();
      being_read_ = true;
    }
    void used(const Stream&) override {
      if (simulator::is_recording()) throw CaptureError("cannot record an event that a copy from the host waits for");
      being_read_ = false;
    }

   private:
    static constexpr int nonsense = 0xcd;

    void arrive() {
      if (bytes_ > 0) std::memcpy(target_, host_.data(), static_cast<std::size_t>(bytes_));
      bytes_ = 0;
    }

    std::vector<char> host_;
    void* target_ = nullptr;
    std::int64_t bytes_ = 0;  // not yet arrived
    bool being_read_ = false;
  };

  class RecordedWork final : public GpuGraph {
   public:
    explicit RecordedWork(std::vector<std::function<void()>> work) : work_(std::move(work)) {}
    void replay(const Stream&) override {
      for (const auto& one : work_) one();
    }

   private:
    std::vector<std::function<void()>> work_;
  };

  static void enqueue(const Stream& stream, const std::function<void()>& work) {
    if (!simulator::record(work)) enqueue_on_simulated_queue(stream, work);
  }
  void add_range(const void* base, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace(static_cast<const char*>(base), bytes);
  }
  void remove_range(const void* base) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const char*>(base));
  }
  bool is_device_memory(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto range = ranges_.upper_bound(static_cast<const char*>(address));
    return range != ranges_.begin() &&
           static_cast<const char*>(address) < std::prev(range)->first + std::prev(range)->second;
  }

  static constexpr std::align_val_t block_alignment{256};

  std::mutex mutex_;
  std::map<const char*, std::int64_t> ranges_;  // of device memory: base, bytes
};

SimulatedEngine engine;
const GpuEngineRegistration registration{DeviceType::simulated, engine};

}  // namespace
}  // namespace furlong
