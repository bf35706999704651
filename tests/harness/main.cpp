// main() of every test program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string_view>

#include "framework/core/device_fault.h"
#include "framework/core/error.h"
#include "framework/primitives/cpu_isa.h"
#include "tests/framework/engine_testing.h"
#include "tests/harness/count_assertions.h"

namespace furlong::testing {
namespace {

/// Fails a test that passed without evaluating one assertion.
class EveryTestAsserts : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { before_ = furlong_assertions::assertion_count(); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Passed() && furlong_assertions::assertion_count() == before_)
      ADD_FAILURE() << "this test asserts nothing";
  }

  long before_ = 0;
};

/// Ends the program after a test whose kernel has failed on a GPU: the GPU rejects all further work of this process, so
/// every later test would fail. The test counts as one that died. scripts/gpu_check.sh continues with the others in a
/// new process; ctest and scripts/test.sh do not.
class EndsAfterDeviceFault : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const auto on_cuda = [](std::string_view name) {
      return name.find("/cuda") != name.npos || name.find("Cuda") != name.npos;
    };
    // Other tests have not started CUDA, and later ones may fork, which CUDA does not survive.
    if (!test.result()->Failed() || (!on_cuda(test.name()) && !on_cuda(test.test_suite_name()))) return;
    try {
      synchronize(Stream{{DeviceType::cuda, 0}});
    } catch (const DeviceFault& fault) {
      std::cout << fault.what() << "; the GPU rejects further work of this process, whose later tests do not run"
                << std::endl;
      std::fflush(nullptr);
      std::_Exit(70);
    } catch (const Error&) {  // the test has already failed
    }
  }
};

/// Writes "note NOTE", and "begun NAME", then "passed NAME", "failed NAME" or "skipped NAME" to a file for
/// scripts/test.sh. Lines are written immediately: if a program crashes, its last test has begun but not ended.
class Results : public ::testing::EmptyTestEventListener {
 public:
  Results(const char* path, const std::string& note) : file_(path) {
    if (!note.empty()) file_ << "note " << note << std::endl;
  }

 private:
  void OnTestStart(const ::testing::TestInfo& test) override { write("begun", test); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    write(result.Failed() ? "failed" : result.Skipped() ? "skipped" : "passed", test);
  }
  void write(const char* what, const ::testing::TestInfo& test) {
    file_ << what << ' ' << test.test_suite_name() << '.' << test.name() << std::endl;
  }

  std::ofstream file_;
};

}  // namespace
}  // namespace furlong::testing

int main(int argc, char** argv) {
  // A shell starts a background command with SIGINT ignored, and nohup with SIGHUP. Programs that the tests send
  // signals to would inherit that.
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGUSR1, SIGPIPE}) std::signal(number, SIG_DFL);
  try {
    furlong::ops::limit_cpu_isa();
  } catch (const furlong::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return error.exit_status();
  }
  const std::string missing = furlong::testing::engine_missing({furlong::DeviceType::cuda, 0});
  const std::string note = missing.empty() ? "" : "no tests on CUDA: " + missing;
  if (!note.empty()) std::cerr << note << '\n';
  ::testing::InitGoogleMock(&argc, argv);
  // `listeners` owns them. It calls the OnTestEnd of the last one first.
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (const char* path = std::getenv("FURLONG_TEST_RESULTS"))
    listeners.Append(new furlong::testing::Results(path, note));
  if (missing.empty()) listeners.Append(new furlong::testing::EndsAfterDeviceFault);
  listeners.Append(new furlong::testing::EveryTestAsserts);
  return RUN_ALL_TESTS();
}
