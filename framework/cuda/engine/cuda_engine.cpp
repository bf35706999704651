// CUDA memory, queues and copies. The runtime is linked statically; the driver is accessed through it and not linked.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/gpu_blocks.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/cuda/engine/availability.h"
#include "framework/cuda/engine/cublaslt.h"
#include "framework/cuda/engine/cuda_driver.h"
#include "framework/cuda/engine/cuda_errors.h"
#include "framework/cuda/engine/cuda_findings.h"
#include "framework/cuda/engine/cuda_graph.h"
#include "framework/cuda/engine/cuda_queue.h"
#include "framework/cuda/engine/nccl.h"
#include "framework/cuda/engine/pinned_memory.h"
#include "framework/cuda/engine/queue.h"
#include "framework/cuda/engine/report.h"

namespace furlong {
namespace {

/// Minimum step in which memory is allocated, if the device has that much.
constexpr std::int64_t growth_bytes = std::int64_t{64} << 20;

/// The current device is thread-local. It is cached because setting it before every launch is slow.
cudaError_t try_to_select(int index) {
  thread_local int current = -1;
  if (current == index) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(index);
  current = error == cudaSuccess ? index : -1;
  return error;
}
void select(int index) { check_cuda(try_to_select(index), "selecting the device", index); }

CUmemAllocationProp properties_of_memory(int index) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = index;
  return properties;
}

std::int64_t rounded_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// A range of addresses. The parts backed by memory are in order and without gaps.
struct Range {
  int index = 0;
  std::int64_t bytes = 0, granularity = 0, backed = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // offset, bytes
};

class CudaEngine final : public GpuEngine, public GpuBlocks {
 public:
  int device_count() override { return cuda_findings().count_error.empty() ? cuda_findings().device_count : 0; }

  std::string unavailable(int index) override {
    const std::lock_guard lock(mutex_);
    const auto known = unavailable_.find(index);
    if (known != unavailable_.end()) return known->second;
    std::string reason;
    try {
      reason = find_unavailable(index);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    unavailable_.emplace(index, reason);
    return reason;
  }

  GpuDescription describe(int index) override {
    GpuDescription description;
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "querying the device's properties", index);
    description.name = properties.name;
    description.capability = 10 * properties.major + properties.minor;
    description.multiprocessors = properties.multiProcessorCount;
    description.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    std::size_t free = 0, total = 0;
    select(index);
    check_cuda(cudaMemGetInfo(&free, &total), "querying free memory", index);
    description.free_bytes = static_cast<std::int64_t>(free);
    description.identity = cuda_identity(properties.uuid);
    return description;
  }

  void* reserve(int index, std::int64_t bytes) override;
  void release(int index, void* base, std::int64_t bytes) noexcept override;
  std::int64_t back(int index, void* base, std::int64_t from, std::int64_t to) override;
  void* allocate(int index, std::int64_t bytes) override;
  void deallocate(int index, void* block) noexcept override;

  void copy(const Stream& stream, void* target, const void* source, std::int64_t bytes) override {
    if (bytes == 0) return;
    auto* const queue = static_cast<cudaStream_t>(gpu_queue(stream));
    const bool to_device = is_device_memory(target), from_device = is_device_memory(source);
    require(to_device || from_device, "copy on {}: both addresses are in host memory", stream.device.text());
    if (capturing_ && !(to_device && from_device)) throw CaptureError("cannot record a copy to or from host memory");
    const cudaMemcpyKind kind = !from_device ? cudaMemcpyHostToDevice
                                : !to_device ? cudaMemcpyDeviceToHost
                                             : cudaMemcpyDeviceToDevice;
    const bool is_small = kind == cudaMemcpyDeviceToHost && bytes <= pinned_bytes;
    void* const reached = is_small ? pinned_memory(stream.device.index) : target;
    check_cuda(cudaMemcpyAsync(reached, source, static_cast<std::size_t>(bytes), kind, queue), "a copy",
               stream.device.index);
    if (kind != cudaMemcpyDeviceToDevice) synchronize(stream);
    if (is_small) std::memcpy(target, reached, static_cast<std::size_t>(bytes));
  }

  std::unique_ptr<GpuUpload> make_upload(int index) override { return std::make_unique<CudaUpload>(*this, index); }

  void fill_zero(const Stream& stream, void* target, std::int64_t bytes) override {
    if (bytes == 0) return;
    auto* const queue = static_cast<cudaStream_t>(gpu_queue(stream));
    check_cuda(cudaMemsetAsync(target, 0, static_cast<std::size_t>(bytes), queue), "setting memory to zero",
               stream.device.index);
  }

  void synchronize(const Stream& stream) override {
    if (capturing_) throw CaptureError("cannot record a wait for the device");
    const cudaError_t error = cudaStreamSynchronize(static_cast<cudaStream_t>(gpu_queue(stream)));
    check_cuda(error, "work launched earlier on the device", stream.device.index);
  }

  void begin_capture(const Stream& stream) override {
    require(!capturing_, "recording is already in progress");
    auto* const queue = static_cast<cudaStream_t>(gpu_queue(stream));
    check_cuda(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal), "starting to record work",
               stream.device.index);
    capturing_ = true;
  }

  std::unique_ptr<GpuGraph> end_capture(const Stream& stream) override {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    const int index = stream.device.index;
    const cudaError_t ended = cudaStreamEndCapture(static_cast<cudaStream_t>(gpu_queue(stream)), &graph);
    free_kept_blocks();
    check_cuda(ended, "recording work", index);
    return make_cuda_graph(graph, stream);
  }

  void abandon_capture(const Stream& stream) noexcept override {
    if (!std::exchange(capturing_, false)) return;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(static_cast<cudaStream_t>(gpu_queue(stream)), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clear the error of the failed capture
    free_kept_blocks();
  }

  std::unique_ptr<GpuQueue> make_queue(int index) override { return make_cuda_queue(index); }
  std::unique_ptr<GpuEvent> make_event(int index) override { return make_cuda_event(index); }
  void* native_queue(const Stream& stream) override { return gpu_queue(stream); }

  cudaStream_t main_queue(int index) {
    select(index);
    const std::lock_guard lock(mutex_);
    cudaStream_t& queue = queues_[index];
    if (queue == nullptr)
      check_cuda(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "creating a stream", index);
    return queue;
  }

  CudaReport report();

 private:
  class CudaUpload final : public GpuUpload {
   public:
    CudaUpload(const CudaEngine& engine, int index) : engine_(engine), index_(index) {
      select(index);
      check_cuda(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking), "creating a stream", index);
      try {
        check_cuda(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "creating an event", index);
        check_cuda(cudaEventCreateWithFlags(&used_, cudaEventDisableTiming), "creating an event", index);
      } catch (...) {
        free_all();
        throw;
      }
    }
    ~CudaUpload() override { free_all(); }
    CudaUpload(const CudaUpload&) = delete;
    CudaUpload& operator=(const CudaUpload&) = delete;

    void* host(std::int64_t bytes) override {
      select(index_);
      // An event that was never recorded counts as complete.
      check_cuda(cudaEventSynchronize(copied_), "a copy from the host", index_);
      if (bytes <= host_bytes_) return host_;
      if (host_ != nullptr)
        check_cuda(cudaFreeHost(std::exchange(host_, nullptr)), "freeing pinned host memory", index_);
      host_bytes_ = 0;
      check_cuda(cudaHostAlloc(&host_, static_cast<std::size_t>(bytes), cudaHostAllocDefault),
                 "allocating pinned host memory", index_);
      host_bytes_ = bytes;
      return host_;
    }

    void begin(void* target, std::int64_t bytes) override {
      require(bytes >= 0 && bytes <= host_bytes_, "copy of {} bytes from a host buffer of {} bytes", bytes,
              host_bytes_);
      select(index_);
      check_cuda(cudaStreamWaitEvent(queue_, used_, 0), "waiting for the last use of a copy", index_);
      if (bytes > 0)
        check_cuda(cudaMemcpyAsync(target, host_, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, queue_),
                   "a copy", index_);
      check_cuda(cudaEventRecord(copied_, queue_), "recording the event of a copy", index_);
    }

    void wait(const Stream& stream) override {
      if (engine_.capturing_) throw CaptureError("cannot record a wait for a copy from the host");
      check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(gpu_queue(stream)), copied_, 0), "waiting for a copy",
                 index_);
    }

    void used(const Stream& stream) override {
      if (engine_.capturing_) throw CaptureError("cannot record an event that a copy from the host waits for");
      check_cuda(cudaEventRecord(used_, static_cast<cudaStream_t>(gpu_queue(stream))),
                 "recording the event of the last use of a copy", index_);
    }

   private:
    void free_all() noexcept {
      try {
        select(index_);
      } catch (const Error&) {
      }
      if (queue_ != nullptr) cudaStreamSynchronize(queue_);  // a copy may still read the memory to be freed
      if (host_ != nullptr) cudaFreeHost(host_);
      for (cudaEvent_t event : {copied_, used_})
        if (event != nullptr) cudaEventDestroy(event);
      if (queue_ != nullptr) cudaStreamDestroy(queue_);
      cudaGetLastError();
    }

    const CudaEngine& engine_;
    int index_;
    cudaStream_t queue_ = nullptr;
    cudaEvent_t copied_ = nullptr, used_ = nullptr;
    void* host_ = nullptr;
    std::int64_t host_bytes_ = 0;
  };

  /// Returns problems that do not depend on the device index.
  std::string find_unavailable(int index);
  /// Makes the device current, with a context, or throws.
  void start(int index);
  void free_kept_blocks() noexcept;

  bool is_device_memory(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* const byte = static_cast<const char*>(address);
    auto range = ranges_.upper_bound(byte);
    if (range == ranges_.begin()) return false;
    --range;
    return byte < range->first + range->second.bytes;
  }

  std::mutex mutex_;
  bool capturing_ = false;
  std::map<int, std::string> unavailable_;
  std::map<int, cudaStream_t> queues_;
  std::map<const char*, Range> ranges_;  // includes separate blocks
  // Blocks released during capture, when nothing can be freed: device, block.
  std::vector<std::pair<int, void*>> kept_blocks_;
};

std::string CudaEngine::find_unavailable(int index) {
  CudaFindings found = cuda_findings();
  if (found.count_error.empty() && index >= 0 && index < found.device_count) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
      found.device_error = cuda_error_text(error);
      cudaGetLastError();
    } else {
      found.device_name = properties.name;
      found.capability = 10 * properties.major + properties.minor;
      int supported = 0;
      found.virtual_memory =
          driver().complete &&
          driver().device_get_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, index) ==
              CUDA_SUCCESS &&
          supported != 0;
      found.library_problem = cublaslt::table(found.driver_version).library.problem;
    }
  }
  if (const std::string reason = why_unavailable(found, index); !reason.empty()) return reason;
  // A device that another process uses exclusively, or one without memory for a context, still reports its properties.
  cudaError_t started = try_to_select(index);
  if (started == cudaSuccess) started = cudaFree(nullptr);
  if (started != cudaSuccess) {
    found.context_error = cuda_error_text(started);
    cudaGetLastError();
  }
  return why_unavailable(found, index);
}

/// `held`: bytes that Furlong holds.
[[noreturn]] void throw_out_of_memory(int index, std::int64_t bytes, std::int64_t held) {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  throw MachineError(
      "out of memory on cuda:{}: cannot allocate {} MiB in addition to the {} MiB that Furlong holds; {} MiB of the "
      "device's {} MiB are free",
      index, bytes >> 20, held >> 20, free >> 20, total >> 20);
}

void CudaEngine::start(int index) {
  if (const std::string reason = unavailable(index); !reason.empty())
    throw MachineError("cuda:{} cannot be used: {}", index, reason);
  select(index);
}

void* CudaEngine::reserve(int index, std::int64_t bytes) {
  start(index);
  check_cuda(cudaFree(nullptr), "starting the device", index);  // creates the context that the driver functions need
  const GpuDescription device = describe(index);
  if (!has_machine_code(cuda_findings().architectures, device.capability))
    log_info(
        "cuda:{}: this build has no machine code for {}; the driver compiles each kernel on its first use and caches "
        "it",
        index, device.name);
  const CUmemAllocationProp properties = properties_of_memory(index);
  std::size_t granularity = 0;
  CUresult result = driver().get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS || granularity == 0)
    throw MachineError("cuda:{}: cannot query the allocation granularity: {}", index, driver().text_of(result));
  Range range;
  range.index = index;
  range.granularity = static_cast<std::int64_t>(granularity);
  range.bytes = rounded_up(bytes, range.granularity);
  CUdeviceptr base = 0;
  result = driver().address_reserve(&base, static_cast<std::size_t>(range.bytes), 0, 0, 0);
  if (result != CUDA_SUCCESS)
    throw MachineError("cuda:{}: cannot reserve {} MiB of address space: {}", index, range.bytes >> 20,
                       driver().text_of(result));
  auto* const address = reinterpret_cast<char*>(base);
  const std::lock_guard lock(mutex_);
  ranges_[address] = range;
  return address;
}

void CudaEngine::release(int index, void* base, std::int64_t) noexcept {
  try {
    select(index);
    cudaDeviceSynchronize();  // pending work may still use the memory
    Range range;
    {
      const std::lock_guard lock(mutex_);
      const auto found = ranges_.find(static_cast<char*>(base));
      if (found == ranges_.end()) return;
      range = found->second;
      ranges_.erase(found);
    }
    const auto address = reinterpret_cast<CUdeviceptr>(base);
    for (const auto& [offset, bytes] : range.parts)
      driver().unmap(address + static_cast<CUdeviceptr>(offset), static_cast<std::size_t>(bytes));
    driver().address_free(address, static_cast<std::size_t>(range.bytes));
  } catch (...) {  // a device that does not respond has lost its memory anyway
  }
}

std::int64_t CudaEngine::back(int index, void* base, std::int64_t from, std::int64_t to) {
  select(index);
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(static_cast<char*>(base));
  require(found != ranges_.end() && found->second.index == index && from == found->second.backed &&
              to <= found->second.bytes,
          "cuda:{}: memory requested outside a reserved range", index);
  Range& range = found->second;
  const std::int64_t needed = rounded_up(to, range.granularity) - range.backed;
  if (needed <= 0) return range.backed;
  std::int64_t step =
      std::min(std::max(needed, rounded_up(growth_bytes, range.granularity)), range.bytes - range.backed);
  const CUmemAllocationProp properties = properties_of_memory(index);
  CUmemGenericAllocationHandle memory = 0;
  CUresult result = driver().create(&memory, static_cast<std::size_t>(step), &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && step > needed) {
    step = needed;
    result = driver().create(&memory, static_cast<std::size_t>(step), &properties, 0);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(index, step, range.backed);
  if (result != CUDA_SUCCESS)
    throw MachineError("cuda:{}: cannot allocate {} MiB of memory: {}", index, step >> 20, driver().text_of(result));
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(base) + static_cast<CUdeviceptr>(range.backed);
  result = driver().map(address, static_cast<std::size_t>(step), 0, memory, 0);
  driver().release(memory);  // the mapping keeps the memory alive
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver().set_access(address, static_cast<std::size_t>(step), &access, 1);
    if (result != CUDA_SUCCESS) driver().unmap(address, static_cast<std::size_t>(step));
  }
  if (result != CUDA_SUCCESS)
    throw MachineError("cuda:{}: cannot map {} MiB of memory: {}", index, step >> 20, driver().text_of(result));
  range.parts.emplace_back(range.backed, step);
  range.backed += step;
  return range.backed;
}

void* CudaEngine::allocate(int index, std::int64_t bytes) {
  start(index);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, static_cast<std::size_t>(bytes));
  const std::lock_guard lock(mutex_);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the error, so that the next launch does not report it
    std::int64_t held = 0;
    for (const auto& [base, range] : ranges_) held += range.index == index ? range.backed : 0;
    throw_out_of_memory(index, bytes, held);
  }
  check_cuda(error, "allocating memory", index);
  Range range;
  range.index = index;
  range.bytes = range.backed = bytes;
  ranges_[static_cast<const char*>(block)] = range;
  return block;
}

void CudaEngine::deallocate(int index, void* block) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const char*>(block));
    kept_blocks_.emplace_back(index, block);
  }
  if (!capturing_) free_kept_blocks();
}

void CudaEngine::free_kept_blocks() noexcept {
  std::vector<std::pair<int, void*>> blocks;
  {
    const std::lock_guard lock(mutex_);
    blocks.swap(kept_blocks_);
  }
  for (const auto& [index, block] : blocks) {
    if (try_to_select(index) != cudaSuccess) continue;  // a device that does not respond has lost its memory anyway
    cudaDeviceSynchronize();                            // pending work may still use the block
    cudaFree(block);
  }
}

CudaReport CudaEngine::report() {
  CudaReport report;
  report.toolkit = FURLONG_CUDA_TOOLKIT;
  const CudaFindings& found = cuda_findings();
  report.architectures = found.architectures;
  if (found.driver_version != 0) report.driver = cuda_version_text(found.driver_version);
  report.unavailable = unavailable(0);
  for (int index = 0; index < device_count(); ++index) {
    CudaDeviceReport device;
    device.unavailable = unavailable(index);
    try {
      device.description = describe(index);
    } catch (const Error& error) {
      if (device.unavailable.empty()) device.unavailable = error.what();
    }
    report.devices.push_back(device);
  }
  const cublaslt::Table& products = cublaslt::table(found.driver_version);
  report.libraries.push_back(
      {"cuBLASLt", "matrix products", products.version(), products.library.path, products.library.problem});
  const nccl::Table& collectives = nccl::table();
  report.libraries.push_back(
      {"NCCL", "several GPUs", collectives.version(), collectives.library.path, collectives.library.problem});
  return report;
}

// Never destroyed, because tensors with static storage may outlive any order of destruction.
CudaEngine& engine() {
  static auto* const instance = new CudaEngine;
  return *instance;
}

const GpuEngineRegistration engine_registration{DeviceType::cuda, engine()};
const CudaReportRegistration report_registration{[] { return engine().report(); }};

}  // namespace

void* gpu_queue(const Stream& stream) {
  require(stream.device.type == DeviceType::cuda, "a CUDA queue was requested for {}", stream.device.text());
  if (stream.handle == nullptr) return engine().main_queue(stream.device.index);
  select(stream.device.index);
  return stream.handle;
}

}  // namespace furlong
