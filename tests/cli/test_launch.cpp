// The program furlong launch. tests/communication/launch/ tests the launcher itself.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class LaunchCommand : public testing::WithProgram {
 protected:
  testing::Finished launch(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "launch");
    return furlong(arguments);
  }
  /// Returns whether a process of this machine listens on a port.
  static bool is_open(std::uint16_t port) {
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream sockets(table);
      for (std::string line; std::getline(sockets, line);) {
        const std::size_t place = line.find(fmt::format(":{:04X} ", port));
        if (place != std::string::npos && line.find(" 0A ", place) != std::string::npos) return true;  // 0A: listens
      }
    }
    return false;
  }
  static int error_lines(const std::string& text) {
    int count = 0;
    for (std::size_t at = 0; (at = text.find("error: ", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  void expect_refusal(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    testing::expect_user_error(launch(arguments), parts);
  }
};

TEST_F(LaunchCommand, RejectsInvalidOptions) {
  expect_refusal({}, {"--processes is required"});
  expect_refusal({"--processes", "2"}, {"no command", "furlong launch --processes 2 train c.yaml"});
  expect_refusal({"--processes", "0", "train", "c.yaml"}, {"--processes 0: expected at least 1"});
  expect_refusal({"--processes", "1000000", "train", "c.yaml"}, {"--processes 1000000: expected at most"});
  expect_refusal({"-n", "2", "trian", "c.yaml"}, {"trian: unknown subcommand", "did you mean train?"});
  expect_refusal({"-n", "2", "xyz"}, {"xyz: unknown subcommand", "expected train, sweep --index or bench comm"});
  expect_refusal({"-n", "2", "--tiemout", "3", "train", "c.yaml"},
                 {"unknown option --tiemout", "did you mean --timeout?"});
  expect_refusal({"-n", "2", "--timeout", "nan", "train", "c.yaml"}, {"--timeout: found nan; expected a number"});
  expect_refusal({"-n", "2", "--master-port", "65536", "train", "c.yaml"},
                 {"--master-port 65536: expected a port from 1 to 65535"});
}

TEST_F(LaunchCommand, RejectsSubcommandsForOneRank) {
  // All subcommands that the program lists, so that new ones are tested, too.
  const std::string help = furlong({"--help"}).out;
  std::istringstream lines(help.substr(std::min(help.size(), help.find("Subcommands:\n"))));
  int refused = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) break;
    if (!line.starts_with("  ") || line[2] == ' ') continue;
    const std::string command = line.substr(2, line.find(' ', 2) - 2);
    if (command == "train" || command == "sweep") continue;
    expect_refusal({"-n", "2", "--", command, "x"}, {"furlong launch " + command + ": ", "expected train"});
    ++refused;
  }
  EXPECT_GE(refused, 14) << help;
}

TEST_F(LaunchCommand, RejectsJobInsideJob) {
  setenv("RANK", "1", 1);
  expect_refusal({"-n", "2", "train", "c.yaml"}, {"RANK=1", "already a rank of a job"});
  unsetenv("RANK");
}

TEST_F(LaunchCommand, ForwardsSignalAndReturnsExitStatus) {
  testing::Program program(
      folder_, {"launch", "-n", "1", "train", (testing::source_directory() / "configs/copy_linear.yaml").string(),
                "--run-dir", path("run"), "--set", "trainer.max_steps=10000000", "--set", "trainer.validate_every=0",
                "--set", "checkpoint.every=0", "--set", "log.every=1"});
  program.wait_for_more(path("run/metrics.jsonl"), 0);
  program.send(SIGUSR1);
  const testing::Finished stopped = program.wait();
  EXPECT_EQ(stopped.status, 3) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("stopped by a signal, saved at step "));
  EXPECT_FALSE(std::filesystem::is_empty(path("run/checkpoints")));
}

// The other rank never starts.
TEST_F(LaunchCommand, SignalEndsTheWaitForOtherRanks) {
  const std::uint16_t port = store_testing::free_port();
  const std::vector<std::pair<const char*, std::string>> variables{{"RANK", "0"},
                                                                   {"WORLD_SIZE", "2"},
                                                                   {"LOCAL_RANK", "0"},
                                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                                   {"MASTER_PORT", std::to_string(port)},
                                                                   {"FURLONG_JOB_SECRET", "of the test"}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  testing::Program program(folder_, {"train", (testing::source_directory() / "configs/copy_linear.yaml").string(),
                                     "--run-dir", path("run"), "--set", "parallel.timeout=5", "--set", "device=cpu"});
  for (const auto& [name, value] : variables) unsetenv(name);
  program.wait_until([&] { return is_open(port); });
  program.send(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  const testing::Finished stopped = program.wait();
  EXPECT_EQ(stopped.status, 3) << stopped.err;
  EXPECT_LT(testing::seconds_since(begin), 60);
  EXPECT_THAT(stopped.err, HasSubstr("error: stopped by a signal before all ranks had connected"));
  EXPECT_EQ(error_lines(stopped.err), 1) << stopped.err;
}

TEST_F(LaunchCommand, ForwardsArgumentsUnchanged) {
  // Options of the command, one of them with a name that launch also has, and flags after the command, with and without
  // --.
  const testing::Finished help = launch({"-n", "2", "--", "train", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("Usage: furlong train"));
  EXPECT_THAT(help.err, HasSubstr("\n[rank 1] Usage: furlong train"));
  for (const bool marked : {false, true}) {
    std::vector<std::string> arguments = {"--processes",  "2",     "train",  "--json",
                                          "missing.yaml", "--set", "seed=1", "--timeout=3"};
    if (marked) arguments.insert(arguments.begin() + 2, "--");
    const testing::Finished result = launch(arguments);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(
        result.err,
        EndsWith(
            "\nerror: unknown option --timeout; did you mean --set parallel.timeout=3?; see furlong train --help\n"));
    EXPECT_EQ(error_lines(result.err), 1) << result.err;
  }
}

TEST_F(LaunchCommand, ReportsUserErrorOnce) {
  for (const char* ranks : {"1", "2"}) {
    const testing::Finished missing = launch({"-n", ranks, "train", "missing.yaml", "--set", "seed=1"});
    EXPECT_EQ(missing.status, 2) << missing.err;
    EXPECT_THAT(missing.err, HasSubstr("\nerror: missing.yaml: does not exist"));
    EXPECT_EQ(error_lines(missing.err), 1) << missing.err;
  }
  const testing::Finished bytes = launch({"-n", "2", "bench", "comm", "--bytes", "0"});
  EXPECT_EQ(bytes.status, 2);
  EXPECT_THAT(bytes.err, EndsWith("\nerror: --bytes 0: expected sizes from 1 byte to 1 TiB\n"));
  EXPECT_EQ(error_lines(bytes.err), 1) << bytes.err;
}

}  // namespace
}  // namespace furlong
