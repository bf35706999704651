// Environment, output and exit status of launched ranks. Faults: test_launcher_faults.cpp.
#include "communication/launch/launcher.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "communication/launch/core_split.h"
#include "communication/launch/launch_environment.h"
#include "tests/communication/launch/launcher_testing.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace launcher_testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Launcher, SetsTheRankVariables) {
  std::set<std::string> secrets;
  for (int run = 0; run < 2; ++run) {
    Launcher launcher(3, "env > $D/env.$RANK", 15, {{{"MASTER_PORT", "1"}, {"FURLONG_JOB_SECRET", "old"}}});
    EXPECT_EQ(launcher.wait().status, 0);
    std::set<std::string> ports;
    for (int rank = 0; rank < 3; ++rank) {
      std::map<std::string, std::string> variables;
      for (const std::string& line : lines_of(launcher.content("env." + std::to_string(rank)))) {
        const auto equals = line.find('=');
        variables[line.substr(0, equals)] = line.substr(equals + 1);
      }
      const LaunchEnvironment found = discover_launch(
          [&](const char* name) { return variables.contains(name) ? std::optional(variables[name]) : std::nullopt; },
          "host");
      EXPECT_EQ(found.launcher, "furlong");
      EXPECT_EQ(found.rank, rank);
      EXPECT_EQ(found.local_rank, rank);
      EXPECT_EQ(found.world_size, 3);
      EXPECT_EQ(found.local_world_size, 3);
      EXPECT_EQ(found.master_address, "127.0.0.1");
      EXPECT_GT(found.master_port, 1023);
      EXPECT_EQ(found.secret_source, "FURLONG_JOB_SECRET");
      EXPECT_EQ(found.secret.size(), 32u);
      EXPECT_EQ(found.secret.find_first_not_of("0123456789abcdef"), std::string::npos);
      secrets.insert(found.secret);
      ports.insert(variables["MASTER_PORT"]);
      EXPECT_EQ(variables["PATH"], std::getenv("PATH"));
    }
    EXPECT_EQ(ports.size(), 1u);
  }
  EXPECT_EQ(secrets.size(), 2u) << "expected one secret for each job";
}

TEST(Launcher, DividesCoresUnlessThreadsAreSet) {
  const char* script =
      "echo $OMP_NUM_THREADS $(grep Cpus_allowed_list /proc/self/status | cut -f2) > "
      "$D/got.$RANK";
  const std::vector<int> cores = neighboring_cores();
  const auto n = static_cast<int>(std::min<std::size_t>(cores.size(), 4));
  Launcher own(n, script, 15, {{{"OMP_NUM_THREADS", "1"}}});
  EXPECT_THAT(own.wait().err, HasSubstr("(OMP_NUM_THREADS=1 as set)"));
  for (int rank = 0; rank < n; ++rank) {
    const std::string block = core_list(split_cores(cores, n, 1)[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(own.content("got." + std::to_string(rank)), "1 " + block + "\n");
  }
  // More threads than cores: no rank is bound, and a warning is logged.
  const auto many = static_cast<int>(cores.size()) + 1;
  Launcher crowd(many, script);
  const Ended ended = crowd.wait();
  EXPECT_THAT(ended.err, HasSubstr("warning: " + std::to_string(many) + " ranks with 1 thread each share"));
  for (int rank = 0; rank < many; ++rank)
    EXPECT_EQ(crowd.content("got." + std::to_string(rank)), "1 " + core_list(cores) + "\n");
  Launcher list(1, script, 15, {{{"OMP_NUM_THREADS", "7,2"}}});
  list.wait();
  EXPECT_EQ(list.content("got.0").substr(0, 4), "7,2 ") << "a set variable must stay unchanged";
}

TEST(Launcher, PrefixesLinesOfRanksAboveZero) {
  const char* script =
      "if [ $RANK = 0 ]; then printf 'to out, no newline'; printf 'to err\\n' >&2; exit; fi\n"
      "i=0; while [ $i -lt 60 ]; do printf \"$RANK:\"; printf \"$i-\" >&2; printf \"out $i\\n\"; printf \"err\\n\" "
      ">&2; i=$((i+1)); done\n"
      "printf 'torn '; printf end";
  Launcher launcher(3, script);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.out, "to out, no newline");
  std::map<std::string, std::vector<std::string>> by_stream;
  for (const std::string& line : rank_lines_of(ended)) {
    if (line == "to err") {
      by_stream["0"].push_back(line);
    } else {
      ASSERT_TRUE(line.starts_with("[rank 1] ") || line.starts_with("[rank 2] ")) << line;
      by_stream[line.substr(0, 9) + (line.ends_with("-err") ? "err" : "out")].push_back(line.substr(9));
    }
  }
  EXPECT_EQ(by_stream["0"].size(), 1u);
  for (const std::string rank : {"1", "2"}) {
    std::vector<std::string> out, err;
    for (int i = 0; i < 60; ++i) {
      out.push_back(rank + ":out " + std::to_string(i));
      err.push_back(std::to_string(i) + "-err");
    }
    out.push_back("torn end");
    EXPECT_EQ(by_stream["[rank " + rank + "] out"], out);
    EXPECT_EQ(by_stream["[rank " + rank + "] err"], err);
  }
}

TEST(Launcher, KeepsAllOutputForASlowReader) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Launcher launcher(2, "[ $RANK = 0 ] || seq 1 300000", 15, {{}, {}, ends[1]});
  close(ends[1]);
  std::this_thread::sleep_for(300ms);  // now the pipe and the queue are full, and the rank blocks
  std::string text;
  char buffer[65536];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  close(ends[0]);
  EXPECT_EQ(launcher.wait().status, 0);
  std::string expected;
  for (int i = 1; i <= 300000; ++i) expected += "[rank 1] " + std::to_string(i) + "\n";
  const auto begin = text.find("[rank 1]");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_TRUE(text.substr(begin) == expected) << text.size() - begin << " bytes instead of " << expected.size();
}

TEST(Launcher, IsolatesProcessGroupInputAndDescriptors) {
  // The launcher has no standard input, so the next pipe could get descriptor 0.
  Launcher launcher(2,
                    "echo $(cut -d' ' -f5 /proc/$$/stat) $$ $(readlink /proc/self/fd/0) $(ls /proc/self/fd) > "
                    "$D/got.$RANK; echo said",
                    15, {{}, [] { close(0); }});
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.out, "said\n");
  EXPECT_THAT(rank_lines_of(ended), ElementsAre("[rank 1] said"));
  for (const char* name : {"got.0", "got.1"}) {
    std::istringstream words(launcher.content(name));
    std::string group, process, input, rest;
    words >> group >> process >> input;
    std::getline(words, rest);
    EXPECT_EQ(group, process);
    EXPECT_EQ(input, "/dev/null");
    EXPECT_EQ(rest, " 0 1 2 3") << "3 is the folder that ls reads";
  }
}

TEST(Launcher, RestoresSignalHandlingForRanks) {
  // SIGPIPE terminates a rank as without a launcher, and no signal is blocked.
  Launcher launcher(1, "grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -d '\\n\\t' > $D/got");
  launcher.wait();
  EXPECT_EQ(launcher.content("got"), "SigBlk:0000000000000000SigIgn:0000000000000000");
}

TEST(Launcher, CombinesExitStatuses) {
  struct Case {
    const char* script;
    int status;
    const char* error;  ///< expected error, without host and process; nullptr: none
  };
  for (const Case& one :
       {Case{"exit 0", 0, nullptr}, Case{"[ $RANK = 0 ] && exit 3; exit 0", 3, nullptr}, Case{"exit 3", 3, nullptr},
        Case{"[ $RANK = 1 ] && exit 7; exit 3", 7, "rank 1 ended with status 7"}, Case{"exit 2", 2, nullptr},
        Case{"[ $RANK = 1 ] && kill -ABRT $$; exit 0", 134, "rank 1 was terminated by SIGABRT"},
        Case{"[ $RANK = 1 ] && exit 4; while [ ! -e $D/now ]; do sleep 0.02; done; exit 5", 4,
             "rank 1 ended with status 4"}}) {
    SCOPED_TRACE(one.script);
    Launcher launcher(2, one.script, 15, {{}, [] {
                                            const rlimit none{0, 0};  // no core files
                                            setrlimit(RLIMIT_CORE, &none);
                                          }});
    if (one.status == 4) {
      std::this_thread::sleep_for(200ms);
      launcher.put("now");
    }
    const Ended ended = launcher.wait();
    EXPECT_EQ(ended.status, one.status);
    EXPECT_LT(ended.seconds, 12);
    std::vector<std::string> errors = errors_of(ended);
    ASSERT_EQ(errors.size(), one.error ? 1u : 0u) << ended.err;
    if (!one.error) continue;
    const auto bracket = errors[0].find(" (host " + this_host() + ", process "), end = errors[0].find(')');
    ASSERT_NE(bracket, std::string::npos) << errors[0];
    EXPECT_EQ(errors[0].erase(bracket, end + 1 - bracket), one.error);
  }
}

TEST(Launcher, RejectsInvalidOptions) {
  const EnvironmentFunction nothing = [](const char*) { return std::nullopt; };
  const auto message = [&](const LaunchOptions& options, const EnvironmentFunction& environment) {
    return testing::message_of<UserError>([&] { launch(options, environment); });
  };
  const auto with = [](std::map<std::string, std::string> variables) -> EnvironmentFunction {
    return [variables](const char* name) {
      return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
    };
  };
  LaunchOptions right = Launcher::shell(1, "exit 9");
  LaunchOptions options = right;
  for (const int processes : {0, -1}) {
    options.processes = processes;
    EXPECT_THAT(message(options, nothing),
                HasSubstr("--processes " + std::to_string(processes) + ": expected at least 1"));
  }
  options = right;
  options.arguments.clear();
  EXPECT_THAT(message(options, nothing), HasSubstr("no command"));
  options = right;
  for (const double timeout : {-1.0, std::nan(""), 1e7}) {
    options.timeout = timeout;
    EXPECT_THAT(message(options, nothing), HasSubstr("--timeout"));
  }
  options = right;
  for (const int port : {-1, 65536}) {
    options.master_port = port;
    EXPECT_THAT(message(options, nothing), HasSubstr("expected a port from 1 to 65535"));
  }
  EXPECT_THAT(message(right, with({{"RANK", "0"}})), HasSubstr("RANK=0: this process is already a rank of a job"));
  const std::map<std::string, std::string> two = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THAT(message(right, with(two)), HasSubstr("already rank 1 of 2 (launcher: open_mpi)"));
}

TEST(Launcher, RunsInsideASingleRankJob) {
  Launcher launcher(2, "exit 0", 15,
                    {{{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}});
  EXPECT_EQ(launcher.wait().status, 0);
}

TEST(Launcher, LeavesNoProcessIfStartingFails) {
  LaunchOptions options = Launcher::shell(2, "exit 0");
  options.program = "/nonexistent/furlong";
  Launcher missing(options, {});
  const Ended ended = missing.wait();
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(errors_of(ended), ElementsAre("/nonexistent/furlong: cannot be started: No such file or directory"));
  // Descriptors run out half way: the ranks that have started are killed.
  Launcher few(30, "echo $$ > $D/pid.$RANK; exec sleep 30", 15, {{}, [] {
                                                                   const rlimit files{40, 40};
                                                                   setrlimit(RLIMIT_NOFILE, &files);
                                                                 }});
  const Ended half = few.wait();
  EXPECT_EQ(half.status, 1);
  EXPECT_THAT(half.err, HasSubstr("ulimit -n"));
  int started = 0;
  for (const auto& file : std::filesystem::directory_iterator(few.folder())) {
    if (!file.path().filename().string().starts_with("pid.")) continue;
    ++started;
    EXPECT_TRUE(gone(std::atoi(read_file(file.path()).c_str()))) << file.path();
  }
  EXPECT_LT(started, 30);
}

}  // namespace
}  // namespace furlong
