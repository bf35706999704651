#include "framework/cuda/engine/cuda_queue.h"

#include <fmt/format.h>

#include "framework/core/error.h"
#include "framework/cuda/engine/cuda_errors.h"
#include "framework/cuda/engine/queue.h"

namespace furlong {
namespace {

/// Makes the device current for the calling thread.
void select(int index) { gpu_queue(Stream{Device{DeviceType::cuda, index}}); }

cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(gpu_queue(stream)); }

class CudaQueue final : public GpuQueue {
 public:
  explicit CudaQueue(int index) : index_(index) {
    select(index);
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "querying stream priorities", index);
    check_cuda(cudaStreamCreateWithPriority(&queue_, cudaStreamNonBlocking, greatest), "creating a stream", index);
  }
  ~CudaQueue() override {
    cudaStreamDestroy(queue_);  // returns at once; pending work still completes
    cudaGetLastError();
  }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  Stream stream() const override { return {Device{DeviceType::cuda, index_}, queue_}; }

 private:
  int index_;
  cudaStream_t queue_ = nullptr;
};

class CudaEvent final : public GpuEvent {
 public:
  explicit CudaEvent(int index) : index_(index) {
    select(index);
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event", index);
  }
  ~CudaEvent() override {
    cudaEventDestroy(event_);
    cudaGetLastError();
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(const Stream& stream) override {
    check_not_recording(stream);
    check_cuda(cudaEventRecord(event_, stream_of(stream)), "recording an event", index_);
  }
  void wait(const Stream& stream) override {
    check_not_recording(stream);
    check_cuda(cudaStreamWaitEvent(stream_of(stream), event_, 0), "waiting for another stream", index_);
  }
  bool done() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // not an error, but the runtime stores it as one
      return false;
    }
    check_cuda(state, "work launched earlier on the device", index_);
    return true;
  }

 private:
  void check_not_recording(const Stream& stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream_of(stream), &status), "querying the capture status", index_);
    if (status != cudaStreamCaptureStatusNone) throw CaptureError("cannot record an event that two streams wait for");
  }

  int index_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuQueue> make_cuda_queue(int index) { return std::make_unique<CudaQueue>(index); }
std::unique_ptr<GpuEvent> make_cuda_event(int index) { return std::make_unique<CudaEvent>(index); }

std::string cuda_identity(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace furlong
