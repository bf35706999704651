#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/core/gpu_engine.h"
#include "framework/core/machine.h"
#include "framework/cuda/engine/report.h"
#include "tests/places.h"

namespace furlong {
namespace {

struct Outcome {
  int status = -1;
  std::string output;
};

/// Runs `ENVIRONMENT furlong ARGUMENTS`; standard error joins the output.
Outcome furlong(const std::string& arguments, const std::string& environment = "") {
  const std::string command = "env " + environment + " '" + testing::program_under_test() + "' " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.output.append(buffer, n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

bool mentions(const nlohmann::json& advice, const std::string& word) {
  return advice.dump().find(word) != std::string::npos;
}

TEST(Doctor, JsonDescribesThisMachine) {
  const Outcome outcome = furlong("doctor --json");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  const Machine machine = read_machine();
  EXPECT_EQ(json["cpu"]["model"], machine.cpu.model);
  EXPECT_EQ(json["cpu"]["online_cores"], machine.cpu.online_cores);
  EXPECT_EQ(json["cpu"]["features"]["avx512_bf16"], machine.cpu.has("avx512_bf16"));
  EXPECT_GT(json["cpu"]["matmul_gflops"].get<double>(), 0.01);
  EXPECT_EQ(json["memory"]["total_bytes"], machine.memory.total);
  EXPECT_EQ(json["engines"]["cpu"], "ok");
  EXPECT_EQ(json["gpus"].size(), machine.gpus.size());
  EXPECT_TRUE(json["problems"].empty());
  for (const char* library : {"oneDNN", "HDF5", "yaml-cpp", "Highway", "zlib", "liblzma", "xxHash"}) {
    ASSERT_TRUE(json["libraries"].contains(library)) << library;
    EXPECT_NE(json["libraries"][library]["version"], "unknown") << library;
  }
}

TEST(Doctor, ReportsWhetherGpuIsUsable) {
  const Outcome outcome = furlong("doctor --json"), text = furlong("doctor");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  const std::string state = json["engines"]["cuda"];
  EXPECT_NE(text.output.find("cuda: " + state), std::string::npos) << text.output;
  EXPECT_EQ(json["engines"].contains("simulated"), gpu_engine(DeviceType::simulated) != nullptr);
  const auto here = cuda_report();
  if (!here) {
    EXPECT_EQ(state, "this program was built without the CUDA toolkit");
    EXPECT_TRUE(json["cuda"].is_null());
    return;
  }
  EXPECT_EQ(state, here->unavailable.empty() ? "ok" : here->unavailable);
  EXPECT_EQ(json["cuda"]["toolkit"], here->toolkit);
  EXPECT_EQ(json["cuda"]["architectures"], here->architectures);
  EXPECT_EQ(json["cuda"]["devices"].size(), here->devices.size());
  ASSERT_EQ(here->libraries.size(), 2u);
  for (const CudaLibraryReport& library : here->libraries) {
    const auto& found = json["cuda"]["libraries"][library.name];
    EXPECT_EQ(found["version"], library.version);
    EXPECT_EQ(found["path"], library.path);
    EXPECT_EQ(found["problem"], library.problem);
    EXPECT_NE(library.path.empty(), library.problem.empty()) << library.name << " is found, or has a problem";
    EXPECT_EQ(library.path.empty(), library.version.empty());
    EXPECT_NE(text.output.find(library.problem.empty() ? library.path : library.problem), std::string::npos)
        << text.output;
  }
  for (const char* line : {"  built     with CUDA ", "  driver    "})
    EXPECT_NE(text.output.find(line), std::string::npos) << text.output;
}

TEST(Doctor, TextNamesEverySection) {
  const Outcome outcome = furlong("doctor");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* section :
       {"furlong ", "cpu ", "memory ", "huge pages ", "engines ", "gpus ", "libraries\n", "advice"})
    EXPECT_NE(outcome.output.find(section), std::string::npos) << section << " in\n" << outcome.output;
}

TEST(Doctor, AdvisesOnSlowEnvironment) {
  const std::string threads = std::to_string(read_machine().cpu.usable_cores() + 1);
  const std::string clean =
      "-u FURLONG_POOL_THREADS -u OMP_NUM_THREADS -u OMP_WAIT_POLICY -u ONEDNN_MAX_CPU_ISA -u DNNL_MAX_CPU_ISA ";
  const auto without = nlohmann::json::parse(furlong("doctor --json", clean).output)["advice"];
  const auto found = nlohmann::json::parse(
      furlong("doctor --json", clean + "OMP_NUM_THREADS=" + threads + " OMP_WAIT_POLICY=passive DNNL_MAX_CPU_ISA=AVX2")
          .output);
  const auto with = found["advice"];
  EXPECT_EQ(found["cpu"]["threads"], std::stoi(threads));
  for (const char* name : {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "DNNL_MAX_CPU_ISA"}) {
    EXPECT_FALSE(mentions(without, name)) << name;
    EXPECT_TRUE(mentions(with, name)) << name;
  }
}

#if defined(__x86_64__)
TEST(Doctor, EnvironmentLimitsInstructionSet) {
  const auto limited = nlohmann::json::parse(furlong("doctor --json", "FURLONG_CPU_ISA=sse4").output);
  EXPECT_EQ(limited["cpu"]["instruction_set"], "sse4");
  EXPECT_EQ(limited["cpu"]["vector_target"], "SSE4");
  EXPECT_TRUE(mentions(limited["advice"], "FURLONG_CPU_ISA"));
  EXPECT_EQ(limited["problems"], nlohmann::json::array());
  const Outcome unknown = furlong("doctor", "FURLONG_CPU_ISA=mmx");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.output.find("expected one of sse4, avx2, avx512, avx512_bf16, amx"), std::string::npos)
      << unknown.output;
}
#endif

TEST(Doctor, HelpAndUnknownOptions) {
  const Outcome help = furlong("doctor --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.output.find("--json"), std::string::npos);
  EXPECT_EQ(furlong("doctor --no-such-option").status, 2);
}

}  // namespace
}  // namespace furlong
