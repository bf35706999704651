#pragma once
// Tests that run on every engine: the CPU, the simulator, and CUDA. Instances for an engine that this build or this
// machine lacks do not exist.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

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

/// Returns the result of `ask`, which runs in a child process: CUDA does not survive a fork, and some tests fork. With
/// FURLONG_TEST_ASK_HERE it runs in this process, for tools that do not support CUDA in a forked child.
inline std::string asked_elsewhere(const std::function<std::string()>& ask) {
  if (std::getenv("FURLONG_TEST_ASK_HERE") != nullptr) return ask();
  int answer[2];
  if (::pipe(answer) != 0) return "no pipe";
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = ask();
    const bool written = ::write(answer[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(answer[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = ::read(answer[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  ::close(answer[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

/// Why tests cannot run on `device` in this build and on this machine; empty when they can.
inline std::string engine_missing(const Device& device) {
  if (!device.is_gpu()) return "";
  GpuEngine* engine = gpu_engine(device.type);
  if (engine == nullptr) return "this build has no engine for " + device.text();
  static std::map<std::string, std::string> reasons;
  const auto [known, is_new] = reasons.try_emplace(device.text());
  if (is_new) known->second = asked_elsewhere([&] { return engine->unavailable(device.index); });
  return known->second;
}

/// Those of `wanted` that tests can run on; asked when main() registers tests.
inline std::vector<DeviceType> available(std::initializer_list<DeviceType> wanted) {
  std::vector<DeviceType> found;
  for (const DeviceType type : wanted) {
    if (engine_missing({type, 0}).empty()) found.push_back(type);
  }
  return found;
}
inline std::vector<DeviceType> gpu_engines() { return available({DeviceType::simulated, DeviceType::cuda}); }
inline std::vector<DeviceType> engines() {
  return available({DeviceType::cpu, DeviceType::simulated, DeviceType::cuda});
}

/// A test with the engine as its parameter: write `class Activation : public testing::EngineTest {};`, then
/// FURLONG_INSTANTIATE_ENGINES(Activation); and TEST_P(Activation, MatchesDefinition). Tests of what only GPUs do
/// belong to a separate class, with FURLONG_INSTANTIATE_GPUS.
class EngineTest : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { device_under_test() = Device{GetParam(), 0}; }
  /// Faults of kernels show when they are waited for: in the test that launched them.
  void TearDown() override {
    synchronize(stream());
    device_under_test() = Device{};
  }
};

inline std::string name_of_engine(DeviceType type) {
  return type == DeviceType::cpu ? "cpu" : type == DeviceType::cuda ? "cuda" : "simulated";
}
inline std::string engine_name(const ::testing::TestParamInfo<DeviceType>& info) { return name_of_engine(info.param); }

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

#define FURLONG_INSTANTIATE_ENGINES(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Engines, suite, ::testing::ValuesIn(::furlong::testing::engines()), \
                           ::furlong::testing::engine_name)
#define FURLONG_INSTANTIATE_GPUS(suite)                                                            \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                            \
  INSTANTIATE_TEST_SUITE_P(Engines, suite, ::testing::ValuesIn(::furlong::testing::gpu_engines()), \
                           ::furlong::testing::engine_name)
