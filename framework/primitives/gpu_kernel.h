#pragma once
// How an op finds its kernel on a GPU engine. nvcc compiles an op's kernels once; in builds with tests, the host
// compiler compiles them again for the simulator. Each compilation registers its launcher here before main. A build
// without a kernel throws when the kernel is called.
#include <utility>

#include "framework/core/device.h"
#include "framework/core/error.h"

namespace furlong::ops {

/// The launchers of one kernel: void(const Stream&, Arguments...) for each GPU engine. Declare it `inline` in a header
/// that both the op and its kernels include.
template <class... Arguments>
class GpuKernel {
 public:
  using Function = void (*)(const Stream&, Arguments...);

  explicit constexpr GpuKernel(const char* op) : op_(op) {}
  GpuKernel(const GpuKernel&) = delete;
  GpuKernel& operator=(const GpuKernel&) = delete;

  /// Returns whether the engine of `type` has this kernel.
  bool has(DeviceType type) const { return function_for(type) != nullptr; }

  /// Launches the kernel on the stream; the host does not wait. Throws ContractError if this build has no kernel for
  /// the stream's device.
  void operator()(const Stream& stream, Arguments... arguments) const {
    const Function function = function_for(stream.device.type);
    require(function != nullptr, "{}: no kernel for {} in this build", op_, stream.device.text());
    function(stream, std::forward<Arguments>(arguments)...);
  }

  /// Registers a launcher. Called before main by GpuKernelRegistration.
  void set(DeviceType type, Function function) { (type == DeviceType::cuda ? cuda_ : simulated_) = function; }

 private:
  Function function_for(DeviceType type) const {
    return type == DeviceType::cuda ? cuda_ : type == DeviceType::simulated ? simulated_ : nullptr;
  }

  const char* op_;
  Function cuda_ = nullptr, simulated_ = nullptr;
};

/// Runs the kernel for the stream's device: the CPU's or a GPU's, or none on the shape-only device.
template <class Cpu, class... Expected, class... Arguments>
void dispatch_kernel(const Stream& stream, const Cpu& cpu, const GpuKernel<Expected...>& gpu,
                     Arguments&&... arguments) {
  switch (stream.device.type) {
    case DeviceType::cpu:
      cpu(std::forward<Arguments>(arguments)...);
      return;
    case DeviceType::shape_only:
      return;
    case DeviceType::cuda:
    case DeviceType::simulated:
      gpu(stream, std::forward<Arguments>(arguments)...);
      return;
  }
}

}  // namespace furlong::ops

#ifdef FURLONG_GPU  // in a kernel file, compiled for one of the two engines, with a different namespace in each
namespace furlong {
inline namespace FURLONG_GPU {

/// Registers a launcher before main: const GpuKernelRegistration registration{activation_gpu, &activation};
template <class... Arguments>
class GpuKernelRegistration {
 public:
  GpuKernelRegistration(ops::GpuKernel<Arguments...>& body, typename ops::GpuKernel<Arguments...>::Function launcher) {
#ifdef __CUDACC__
    body.set(DeviceType::cuda, launcher);
#else
    body.set(DeviceType::simulated, launcher);
#endif
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong
#endif
