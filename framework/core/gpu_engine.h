#pragma once
// The core's interface to an engine that runs GPU kernels: memory, copies, and device queries. The CUDA engine and the
// simulator each register one object at program start. A build may contain either, both or none; no other code depends
// on which.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/error.h"

namespace furlong {

/// One device as its driver describes it.
struct GpuDescription {
  std::string name;    ///< "NVIDIA H100 80GB HBM3"
  int capability = 0;  ///< 10 major + minor: 90
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;  ///< total
  std::int64_t free_bytes = 0;    ///< at the time of the call
  /// Identifies the device in every process that can use it: "GPU-8f6d2a1c-…". Unique per device.
  std::string identity;
};

/// An operation that cannot be recorded was requested during capture: a wait for the device, or a copy to or from host
/// memory.
class CaptureError : public Error {
 public:
  using Error::Error;
};

/// Recorded work. A replay runs it on the current contents of its memory.
class GpuGraph {
 public:
  virtual ~GpuGraph() = default;
  /// Launches the recorded work on the stream and returns; the host does not wait.
  virtual void replay(const Stream& stream) = 0;
};

/// Copies data from host to device concurrently with the device's streams: pinned host memory and a copy queue. One
/// copy is in flight at a time. Order of calls: host(), begin(), wait(), work that reads the copy, used(), and again.
/// wait() and used() throw CaptureError during capture.
class GpuUpload {
 public:
  virtual ~GpuUpload() = default;
  /// Returns host memory of `bytes` bytes for the next begin(). The buffer is reused and grows if needed. Waits while
  /// the device still copies from it.
  virtual void* host(std::int64_t bytes) = 0;
  /// Starts to copy the first `bytes` of that memory to `target` on the device, after the work that used() marked.
  /// Returns immediately.
  virtual void begin(void* target, std::int64_t bytes) = 0;
  /// Makes work launched later on the stream wait for the copy. The host does not wait.
  virtual void wait(const Stream& stream) = 0;
  /// Marks the work launched so far on the stream as the last user of the target. The next copy starts after it.
  virtual void used(const Stream& stream) = 0;
};

/// A second queue of work next to a device's main stream. Work in the two runs concurrently unless an event orders it.
/// Destroying the queue does not cancel its work.
class GpuQueue {
 public:
  virtual ~GpuQueue() = default;
  /// Returns the stream on which to launch this queue's work; valid as long as the queue exists.
  virtual Stream stream() const = 0;
};

/// A point in a stream that other streams wait for. record() and wait() throw CaptureError during capture.
class GpuEvent {
 public:
  virtual ~GpuEvent() = default;
  /// Marks the work launched on the stream so far.
  virtual void record(const Stream& stream) = 0;
  /// Makes work launched later on the stream wait for the work that record() marked last; no effect before the first
  /// record(). The host does not wait, except for the main stream of a device that runs work immediately.
  virtual void wait(const Stream& stream) = 0;
  /// Whether the marked work is done. May be called from any thread. Throws MachineError if the device has failed.
  virtual bool done() = 0;
};

/// One kind of GPU. The registered object exists until the program ends.
class GpuEngine {
 public:
  virtual ~GpuEngine() = default;

  /// Number of usable devices. `unavailable` returns why device `index` is not usable, or "" if it is: the missing part
  /// (driver, device, library, architecture) and what was found.
  virtual int device_count() = 0;
  virtual std::string unavailable(int index) = 0;
  /// Describes device `index`, which must be usable.
  virtual GpuDescription describe(int index) = 0;

  /// Reserves `bytes` of addresses on device `index` without memory behind them. release() takes the whole range.
  /// Throws MachineError.
  virtual void* reserve(int index, std::int64_t bytes) = 0;
  virtual void release(int index, void* base, std::int64_t bytes) noexcept = 0;
  /// Backs at least [base + from, base + to) with memory. Returns the end of the backed part as an offset from `base`.
  /// Throws MachineError with the sizes if the memory is exhausted.
  virtual std::int64_t back(int index, void* base, std::int64_t from, std::int64_t to) = 0;

  /// Copies between host and device or within a device, in stream order. Copies to or from host memory are complete on
  /// return.
  virtual void copy(const Stream& stream, void* target, const void* source, std::int64_t bytes) = 0;
  /// Returns an upload to device `index`. Throws MachineError.
  virtual std::unique_ptr<GpuUpload> make_upload(int index) = 0;
  /// Sets `bytes` bytes to zero, in stream order. The host does not wait.
  virtual void fill_zero(const Stream& stream, void* target, std::int64_t bytes) = 0;
  /// Blocks until all work on the stream is done. Throws MachineError with the cause if work has failed.
  virtual void synchronize(const Stream& stream) = 0;

  /// Records work launched on the stream until end_capture() instead of running it. Operations that wait or touch host
  /// memory throw CaptureError. One capture at a time. end_capture() returns null if no work was launched.
  /// abandon_capture() discards the recording; without one it does nothing.
  virtual void begin_capture(const Stream& stream) = 0;
  virtual std::unique_ptr<GpuGraph> end_capture(const Stream& stream) = 0;
  virtual void abandon_capture(const Stream& stream) noexcept = 0;

  /// Returns a queue on device `index`. Its work has priority over the main stream's when both are ready. Throws
  /// MachineError.
  virtual std::unique_ptr<GpuQueue> make_queue(int index) = 0;
  /// Returns an event for streams of device `index`. Throws MachineError.
  virtual std::unique_ptr<GpuEvent> make_event(int index) = 0;
  /// Returns the native handle of a stream: a cudaStream_t. Makes the stream's device current in the calling thread.
  virtual void* native_queue(const Stream& stream) = 0;
};

/// Returns the engine of a GPU device type; null if this build has none.
GpuEngine* gpu_engine(DeviceType type);
/// As gpu_engine(); throws ContractError if this build has none.
GpuEngine& require_gpu_engine(DeviceType type);

/// Registers an engine for the lifetime of the program. Meant for a static object in the engine's source file.
class GpuEngineRegistration {
 public:
  GpuEngineRegistration(DeviceType type, GpuEngine& engine);
};

/// Blocks until all work on the stream is done. Returns immediately on a device that runs work immediately.
void synchronize(const Stream& stream);

}  // namespace furlong
