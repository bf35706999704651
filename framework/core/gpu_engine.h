#pragma once
// What the core needs of an engine that runs kernels: memory, copies, and whether there is a device at all. One object
// for CUDA and one for the simulator register themselves at start; a build may have either, both or none, and nothing
// else depends on which.
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
  std::int64_t memory_bytes = 0;  ///< in all
  std::int64_t free_bytes = 0;    ///< at the time of asking
  std::string identity;  ///< the same in every process that sees this device, and no other's: "GPU-8f6d2a1c-..."
};

/// What cannot be recorded was asked for while work was being recorded: a wait for the device, or a copy to or from
/// host memory.
class CaptureError : public Error {
 public:
  using Error::Error;
};

/// Work that was recorded, to be run again on whatever its memory then holds.
class GpuGraph {
 public:
  virtual ~GpuGraph() = default;
  virtual void replay(const Stream& stream) = 0;
};

/// A way for data from the host to a device beside its streams, so that neither waits for the other: host memory that
/// the device reads by itself, and a queue of copies from it. One copy is under way at a time. In order: host(),
/// begin(), wait(), work that reads the copy, used(), and again. wait() and used() throw CaptureError while work is
/// being recorded.
class GpuUpload {
 public:
  virtual ~GpuUpload() = default;
  /// Memory for `bytes`, to be filled for the next begin(). Made once and kept, made larger where it has to be; waits
  /// for the device while it still copies from it.
  virtual void* host(std::int64_t bytes) = 0;
  /// Begins to copy the first `bytes` of that memory to `target` on the device, behind what used() named. Returns at
  /// once.
  virtual void begin(void* target, std::int64_t bytes) = 0;
  /// Work launched on the stream from here on finds the copy whole. The host does not wait.
  virtual void wait(const Stream& stream) = 0;
  /// Work launched on the stream so far is the last that needs what the target holds (or held before): the next copy
  /// comes after it.
  virtual void used(const Stream& stream) = 0;
};

/// A queue of work beside a device's main one: what is in both runs side by side, unless an event puts it in order.
/// What is in it when it goes is still done.
class GpuQueue {
 public:
  virtual ~GpuQueue() = default;
  virtual Stream stream() const = 0;
};

/// A place in a stream that others wait for. record() and wait() throw CaptureError while work is being recorded.
class GpuEvent {
 public:
  virtual ~GpuEvent() = default;
  /// Names what was launched on the stream so far.
  virtual void record(const Stream& stream) = 0;
  /// Work launched on the stream from here on comes after what record() named last, or at once where it was never
  /// called. The host does not wait, but on a device whose main stream runs things at once, and there for that stream
  /// alone.
  virtual void wait(const Stream& stream) = 0;
  /// Whether that is done; from any thread. Throws MachineError where the device has failed.
  virtual bool done() = 0;
};

class GpuEngine {
 public:
  virtual ~GpuEngine() = default;

  /// Devices that could be used. `unavailable` is why there is none, or why the one asked for is none: the missing part
  /// (driver, device, library, architecture) and what was found; empty when device `index` can be used.
  virtual int device_count() = 0;
  virtual std::string unavailable(int index) = 0;
  virtual GpuDescription describe(int index) = 0;

  /// `bytes` of addresses on device `index`, not yet backed by memory; released whole. Throws MachineError.
  virtual void* reserve(int index, std::int64_t bytes) = 0;
  virtual void release(int index, void* base, std::int64_t bytes) noexcept = 0;
  /// Backs at least [base + from, base + to) by memory and returns how far, from `base`, it now reaches. Throws
  /// MachineError with the numbers when there is none left.
  virtual std::int64_t back(int index, void* base, std::int64_t from, std::int64_t to) = 0;

  /// Copies between host and device or within a device, in the order of the stream. Copies to or from host memory are
  /// done on return.
  virtual void copy(const Stream& stream, void* target, const void* source, std::int64_t bytes) = 0;
  /// To device `index`. Throws MachineError.
  virtual std::unique_ptr<GpuUpload> make_upload(int index) = 0;
  virtual void fill_zero(const Stream& stream, void* target, std::int64_t bytes) = 0;
  /// Waits until everything on the stream is done. Throws MachineError with what failed.
  virtual void synchronize(const Stream& stream) = 0;

  /// From here to end_capture() work on the stream is recorded instead of run; what would wait or touch host memory
  /// throws CaptureError. One capture at a time. abandon_capture() forgets what was recorded.
  virtual void begin_capture(const Stream& stream) = 0;
  virtual std::unique_ptr<GpuGraph> end_capture(const Stream& stream) = 0;
  virtual void abandon_capture(const Stream& stream) noexcept = 0;

  /// On device `index`; its work goes before that of the main stream where both are ready. Throws MachineError.
  virtual std::unique_ptr<GpuQueue> make_queue(int index) = 0;
  virtual std::unique_ptr<GpuEvent> make_event(int index) = 0;
  /// What libraries for the engine's devices know a stream as: a cudaStream_t. Makes its device the calling thread's
  /// current one.
  virtual void* native_queue(const Stream& stream) = 0;
};

/// The engine of a GPU device type; null where this build has none.
GpuEngine* gpu_engine(DeviceType type);
/// The same; throws ContractError where there is none.
GpuEngine& require_gpu_engine(DeviceType type);

/// Makes an engine known for as long as the program runs; meant for a static object of the file that defines the
/// engine.
class GpuEngineRegistration {
 public:
  GpuEngineRegistration(DeviceType type, GpuEngine& engine);
};

/// Waits for everything on the stream; at once on a device that runs things at once.
void synchronize(const Stream& stream);

}  // namespace furlong
