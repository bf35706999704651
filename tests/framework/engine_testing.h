#pragma once
// Tests that run on every engine: the CPU, the simulator, and CUDA where there is a GPU (elsewhere those cases are
// skipped with the reason).
#include <gtest/gtest.h>

#include <string>

#include "framework/core/gpu_engine.h"

namespace furlong::testing {

/// The device that the running test is about: tensor_of() and the tests' tapes use it.
inline Device& device_under_test() {
  static Device device;
  return device;
}
inline const Device& device() { return device_under_test(); }
inline Stream stream() { return Stream{device()}; }
/// Kernels run a thousand times slower there: shapes have to be small.
inline bool on_simulator() { return device().type == DeviceType::simulated; }
inline bool on_gpu() { return device().is_gpu(); }

/// Why tests cannot run on `device` in this build and on this machine; empty when they can.
inline std::string engine_missing(const Device& device) {
  if (!device.is_gpu()) return "";
  GpuEngine* engine = gpu_engine(device.type);
  return engine == nullptr ? "this build has no engine for " + device.text() : engine->unavailable(device.index);
}

/// A test with the engine as its parameter: write `class Activation : public testing::EngineTest {};`, then
/// FURLONG_INSTANTIATE_ENGINES(Activation); and TEST_P(Activation, does_something).
class EngineTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    const Device device{GetParam(), 0};
    if (const std::string reason = engine_missing(device); !reason.empty()) GTEST_SKIP() << reason;
    device_under_test() = device;
  }
  /// Faults of kernels show when they are waited for: in the test that launched them.
  void TearDown() override {
    if (!IsSkipped()) synchronize(stream());
    device_under_test() = Device{};
  }
};

inline std::string engine_name(const ::testing::TestParamInfo<DeviceType>& info) {
  return info.param == DeviceType::cpu ? "cpu" : info.param == DeviceType::cuda ? "cuda" : "simulated";
}

/// The device under test set for a scope, where one test compares several.
class OnDevice {
 public:
  explicit OnDevice(const Device& device) : before_(device_under_test()) { device_under_test() = device; }
  ~OnDevice() { device_under_test() = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Device before_;
};

}  // namespace furlong::testing

#define FURLONG_INSTANTIATE_ENGINES(suite)                                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                                         \
      Engines, suite,                                                                                               \
      ::testing::Values(::furlong::DeviceType::cpu, ::furlong::DeviceType::simulated, ::furlong::DeviceType::cuda), \
      ::furlong::testing::engine_name)
