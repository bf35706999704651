#include <cstdio>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/cuda/engine/availability.h"
#include "framework/cuda/engine/report.h"
#include "tests/framework/engine_testing.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;

/// A machine on which everything is available.
CudaFindings complete() {
  CudaFindings found;
  found.toolkit_version = 13000;
  found.driver_version = 13010;
  found.device_count = 2;
  found.device_name = "NVIDIA H100";
  found.capability = 90;
  found.architectures = "80-real 90-real 90-virtual";
  return found;
}

TEST(CudaAvailability, NamesTheMissingPart) {
  EXPECT_EQ(why_unavailable(complete(), 0), "");
  EXPECT_EQ(why_unavailable(complete(), 1), "");

  CudaFindings found = complete();
  found.device_count = 0;
  found.count_error = "cudaErrorInsufficientDriver (CUDA driver version is insufficient for CUDA runtime version)";
  found.driver_too_old = true;
  EXPECT_EQ(
      why_unavailable(found, 0),
      "the NVIDIA driver, which supports CUDA 13.1, is too old for this build, which uses CUDA 13.0; install a later "
      "driver");
  found.driver_version = 0;  // CUDA reports the same error if there is no driver at all
  EXPECT_EQ(why_unavailable(found, 0), "no NVIDIA driver is installed (libcuda.so.1 was not found)");

  found = complete();
  found.device_count = 0;
  found.no_device = true;
  found.count_error = "cudaErrorNoDevice (no CUDA-capable device is detected)";
  EXPECT_EQ(why_unavailable(found, 0), "the NVIDIA driver, which supports CUDA 13.1, reports no device");
  found.visible_devices = "";
  EXPECT_EQ(why_unavailable(found, 0),
            "the NVIDIA driver, which supports CUDA 13.1, reports no device (CUDA_VISIBLE_DEVICES is set to '')");
  found.no_device = false;
  found.visible_devices.reset();
  found.count_error = "cudaErrorSystemNotReady (system not yet initialized)";
  EXPECT_EQ(why_unavailable(found, 0),
            "the NVIDIA driver, which supports CUDA 13.1, does not work: cudaErrorSystemNotReady (system not yet "
            "initialized)");

  found = complete();
  EXPECT_EQ(why_unavailable(found, 5), "device 5 does not exist: the driver reports 2 devices, cuda:0 to cuda:1");
  found.device_count = 1;
  found.visible_devices = "3";
  EXPECT_EQ(why_unavailable(found, 1),
            "device 1 does not exist: the driver reports one device, cuda:0 (CUDA_VISIBLE_DEVICES is set to '3')");

  found = complete();
  found.device_error = "cudaErrorECCUncorrectable (uncorrectable ECC error encountered)";
  EXPECT_EQ(why_unavailable(found, 0),
            "device 0 does not respond: cudaErrorECCUncorrectable (uncorrectable ECC error encountered)");

  found = complete();
  found.device_name = "Tesla T4";
  found.capability = 75;
  EXPECT_EQ(why_unavailable(found, 0), "Tesla T4 is too old: it has compute capability 7.5, expected 8.0 or later");
  found = complete();
  found.capability = 100;
  found.architectures = "80-real 90-real";
  EXPECT_EQ(
      why_unavailable(found, 0),
      "this build has no code for NVIDIA H100: it has compute capability 10.0, the build has code for 80-real 90-real");

  found = complete();
  found.virtual_memory = false;
  EXPECT_EQ(why_unavailable(found, 0),
            "the NVIDIA driver of NVIDIA H100 does not support virtual memory management, which tensors require");
  found = complete();
  found.library_problem = "cuBLASLt cannot be loaded: libcublasLt.so.13 was searched for in /lib";
  EXPECT_EQ(why_unavailable(found, 0),
            "the library cuBLASLt cannot be loaded: libcublasLt.so.13 was searched for in /lib");
  found = complete();
  found.context_error = "cudaErrorDevicesUnavailable (CUDA-capable device(s) is/are busy or unavailable)";
  EXPECT_EQ(why_unavailable(found, 0),
            "NVIDIA H100 exists but cannot be used now: cudaErrorDevicesUnavailable (CUDA-capable device(s) is/are "
            "busy or unavailable); another process may be using it exclusively or may have filled "
            "its memory");
}

TEST(CudaAvailability, MachineCodeRunsOnItsMajorVersionAndPtxOnLaterOnes) {
  const std::string usual = "80-real 90-real 90-virtual";
  for (int capability : {80, 86, 87, 89, 90, 100, 103, 120}) EXPECT_TRUE(runs_on(usual, capability)) << capability;
  for (int capability : {61, 70, 75}) EXPECT_FALSE(runs_on(usual, capability)) << capability;
  EXPECT_FALSE(runs_on("90-real", 80));
  for (int capability : {80, 86, 87, 89, 90}) EXPECT_TRUE(has_machine_code(usual, capability)) << capability;
  for (int capability : {75, 100, 103, 120}) EXPECT_FALSE(has_machine_code(usual, capability)) << capability;
  EXPECT_FALSE(runs_on("90-real", 100));
  EXPECT_FALSE(runs_on("86-real", 80)) << "code for a later minor version";
  EXPECT_TRUE(runs_on("80", 120)) << "both kinds";
  EXPECT_TRUE(runs_on("80-virtual", 90));
  EXPECT_TRUE(runs_on("90a-real", 90));
  EXPECT_FALSE(runs_on("90a", 100)) << "only for that architecture";
  for (int capability : {100, 103}) EXPECT_TRUE(runs_on("100f-real", capability)) << capability;
  EXPECT_TRUE(runs_on("100f-virtual", 100) && runs_on("90a-virtual", 90));
  EXPECT_FALSE(has_machine_code("100f-virtual", 100) || has_machine_code("90a-virtual", 90));
  EXPECT_FALSE(runs_on("100f", 120)) << "only for that family";
  EXPECT_FALSE(runs_on("native", 90));
  EXPECT_FALSE(runs_on("", 90));
}

TEST(CudaDevice, UnavailableDeviceGivesReasonAndAutoSelectsCpu) {
  GpuEngine* engine = gpu_engine(DeviceType::cuda);
  const std::string reason = engine ? engine->unavailable(0) : "this program was built without CUDA support";
  if (reason.empty()) GTEST_SKIP() << "a GPU is available: " << engine->describe(0).name;
  EXPECT_TRUE(device_from_name("auto").is_cpu());
  for (const char* name : {"cuda", "cuda:0", "cuda:7"}) {
    const std::string message = message_of<UserError>([&] { device_from_name(name); });
    EXPECT_EQ(message.rfind(std::string("device: '") + name + "' is not available: ", 0), 0u) << message;
    EXPECT_NE(message.find(engine ? engine->unavailable(std::string(name) == "cuda:7" ? 7 : 0) : reason),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("device: cpu"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(CudaDevice, RejectsIndexBeyondDeviceCount) {
  GpuEngine* engine = gpu_engine(DeviceType::cuda);
  if (engine == nullptr) GTEST_SKIP() << "this program has no CUDA engine";
  EXPECT_NE(engine->unavailable(1000), "");
  EXPECT_NE(engine->unavailable(-1), "");
  const int count = engine->device_count();
  EXPECT_GE(count, 0);
  EXPECT_TRUE(count >= 1 || !engine->unavailable(0).empty());
}

TEST(CudaDevice, ReportsEachBuiltEngine) {
  const auto report = cuda_report();
  ASSERT_EQ(report.has_value(), gpu_engine(DeviceType::cuda) != nullptr);
  if (!report) GTEST_SKIP() << "this program has no CUDA engine";
  EXPECT_EQ(report->unavailable, gpu_engine(DeviceType::cuda)->unavailable(0));
  EXPECT_FALSE(report->toolkit.empty());
  EXPECT_NE(report->architectures.find_first_of("0123456789"), std::string::npos);
  EXPECT_FALSE(report->driver.empty() && report->unavailable.empty()) << "CUDA cannot be available without a driver";
}

/// Returns the standard output of a command.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST(CudaProgram, StartsWithoutCudaLibraries) {
  const std::string needed = output_of("ldd '" + program_under_test() + "'");
  EXPECT_NE(needed.find("libc.so"), std::string::npos) << needed;
  for (const char* library : {"libcuda", "libcublas", "libnccl", "libnvidia"}) {
    EXPECT_EQ(needed.find(library), std::string::npos) << library << " in\n" << needed;
  }
}

/// Memory and copies, on every available GPU engine.
class GpuMemory : public EngineTest {};
FURLONG_INSTANTIATE_GPUS(GpuMemory);

TEST_P(GpuMemory, GrowsInOneRangeAndKeepsContents) {
  GpuEngine& engine = require_gpu_engine(device().type);
  Arena arena(device(), std::int64_t{1} << 30);
  constexpr std::int64_t block = (std::int64_t{3} << 20) + 512;  // neither a page nor a step of growth
  std::vector<char> pattern(block), read(block);
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(arena.allocate(block));
    std::fill(pattern.begin(), pattern.end(), static_cast<char>(i + 1));
    engine.copy(stream(), blocks.back(), pattern.data(), block);
  }
  for (int i = 0; i < 40; ++i) {
    engine.copy(stream(), read.data(), blocks[static_cast<std::size_t>(i)], block);
    std::fill(pattern.begin(), pattern.end(), static_cast<char>(i + 1));
    ASSERT_EQ(read, pattern) << "block " << i;
  }
  engine.copy(stream(), blocks[3], blocks[7], block);
  engine.fill_zero(stream(), static_cast<char*>(blocks[3]) + 100, 50);
  engine.copy(stream(), read.data(), blocks[3], block);
  std::fill(pattern.begin(), pattern.end(), static_cast<char>(8));
  std::fill(pattern.begin() + 100, pattern.begin() + 150, static_cast<char>(0));
  EXPECT_EQ(read, pattern);
  synchronize(stream());
  for (void* address : blocks) arena.release(address);
  EXPECT_EQ(arena.counters().bytes_in_use, 0);
}

TEST_P(GpuMemory, CopyOfZeroBytesDoesNothing) {
  GpuEngine& engine = require_gpu_engine(device().type);
  EXPECT_NO_THROW(engine.copy(stream(), nullptr, nullptr, 0));
  EXPECT_NO_THROW(engine.fill_zero(stream(), nullptr, 0));
}

TEST_P(GpuMemory, IsDescribed) {
  const GpuDescription description = require_gpu_engine(device().type).describe(0);
  EXPECT_FALSE(description.name.empty());
  EXPECT_GE(description.capability, 80);
  EXPECT_GT(description.multiprocessors, 0);
  EXPECT_GT(description.memory_bytes, 0);
  EXPECT_LE(description.free_bytes, description.memory_bytes);
}

class CudaMemory : public EngineTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaMemory);
INSTANTIATE_TEST_SUITE_P(Engines, CudaMemory, ::testing::ValuesIn(available({DeviceType::cuda})), engine_name);

TEST_P(CudaMemory, ReportsSizesWhenOutOfMemory) {
  const GpuDescription description = require_gpu_engine(DeviceType::cuda).describe(0);
  Arena arena(device(), description.memory_bytes * 2);
  const std::string message =
      message_of<MachineError>([&] { arena.allocate(description.memory_bytes + (std::int64_t{1} << 30)); });
  EXPECT_EQ(message.rfind("out of memory on cuda:0: ", 0), 0u) << message;
  EXPECT_NE(message.find("MiB are free"), std::string::npos) << message;
  arena.release(arena.allocate(1 << 20));  // the arena stays usable
}

}  // namespace
}  // namespace furlong
