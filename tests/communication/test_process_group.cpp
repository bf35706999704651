// Ranks of one job: agreement on values, and the end of all ranks after the failure of one.
#include "communication/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <sstream>

#include "framework/core/machine.h"
#include "tests/communication/communicator_testing.h"
#include "tests/trainers/parallel_testing.h"

namespace furlong {
namespace {

using parallel_testing::Curves;
using parallel_testing::EndsWithoutLeaving;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::seconds_since;
using parallel_testing::steady_clock;
using parallel_testing::World;
using parallel_testing::WorldOptions;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(ProcessGroupTest, SingleRankReturnsItsOwnValues) {
  ProcessGroup group;
  EXPECT_TRUE(group.is_first() && group.is_alone());
  std::vector<double> numbers{1.5, -2};
  group.sum(numbers);
  group.minimum(numbers);
  EXPECT_EQ(numbers, (std::vector<double>{1.5, -2}));
  EXPECT_EQ(group.broadcast_text("text"), "text");
  EXPECT_EQ(group.default_threads(), 0) << "set_thread_count chooses";
  EXPECT_STREQ(group.communicator().engine(), "none");
  group.barrier();
  group.leave();
  group.fail(UserError("not reported"));
}

TEST(ProcessGroupTest, AllRanksGetTheSameNumbersAndTexts) {
  for (const int size : {2, 3}) {
    World world(size, [](ProcessGroup& group, const Report& report) {
      const double rank = group.rank();
      std::vector<double> sums{rank + 1, 0x1p-40 * rank, -rank};
      group.sum(sums);
      report.add(sums);
      std::vector<double> least{rank, -rank, 7};
      group.minimum(least);
      report.add(least);
      group.sum({});
      for (int i = 0; i < 3; ++i)
        report.say(group.broadcast_text(fmt::format("text {} of rank {}\n", i, group.rank())) + "|");
      report.say(group.broadcast_text("") + "|");
      group.barrier();
    });
    EXPECT_EQ(world.wait(), std::vector<int>(static_cast<std::size_t>(size), 0)) << world.errors();
    const double last = size - 1, pairs = last * (last + 1) / 2;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(world[rank].numbers(), (std::vector<double>{pairs + size, 0x1p-40 * pairs, -pairs, 0, -last, 7}));
      EXPECT_EQ(world[rank].words(), "text 0 of rank 0\n|text 1 of rank 0\n|text 2 of rank 0\n||");
    }
  }
}

// While the training thread runs operations, and with ranks that arrive at different times.
TEST(ProcessGroupTest, RankZeroGathersTextsInASeparateThread) {
  const Curves found = run_world(3, [](ProcessGroup& group, const Report& report) {
    std::vector<std::string> first, second;
    std::thread thread([&] {
      std::this_thread::sleep_for(50ms * group.rank());
      first = group.gather_text(fmt::format("a{}", group.rank()), "its text");
      second = group.gather_text(group.rank() == 1 ? "" : fmt::format("b{}", group.rank()), "its text");
    });
    std::vector<double> sums{0};
    for (int i = 0; i < 100; ++i) {
      sums[0] += 1;
      group.sum(sums);
      sums[0] /= 3;
    }
    thread.join();
    report.add(sums);
    const std::vector<std::string> nothing;
    EXPECT_EQ(first, group.is_first() ? (std::vector<std::string>{"a0", "a1", "a2"}) : nothing);
    EXPECT_EQ(second, group.is_first() ? (std::vector<std::string>{"b0", "", "b2"}) : nothing);
  });
  EXPECT_EQ(found, (Curves{{100}, {100}, {100}}));
  EXPECT_EQ(ProcessGroup().gather_text("alone", ""), std::vector<std::string>{"alone"});
}

TEST(ProcessGroupTest, WarnsAboutAMissingText) {
  WorldOptions options;
  options.notice = 400ms;
  World world(
      3,
      [](ProcessGroup& group, const Report& report) {
        const LogCapture captured;
        group.barrier();
        if (group.rank() == 0) std::this_thread::sleep_for(1s);
        group.broadcast_text("settings");
        if (group.rank() == 2) std::this_thread::sleep_for(1s);
        group.gather_text("a checksum", "its part of step_00000050.h5");
        group.broadcast_text("soon enough");
        group.barrier();
        report.say(captured.text());
      },
      options);
  EXPECT_EQ(world.wait(), (std::vector<int>{0, 0, 0})) << world.errors();
  EXPECT_THAT(world[0].words(), HasSubstr("rank 2: its part of step_00000050.h5 has not arrived for "));
  EXPECT_THAT(world[0].words(), ::testing::Not(HasSubstr("rank 1: its part")));
  EXPECT_THAT(world[1].words(), HasSubstr("rank 0: its text for the other ranks has not arrived for "));
}

TEST(ProcessGroupTest, BarrierWaitsForTheLastRank) {
  const Curves found = run_world(3, [](ProcessGroup& group, const Report& report) {
    group.barrier();
    const auto begin = steady_clock::now();
    if (group.rank() == 2) std::this_thread::sleep_for(300ms);
    group.barrier();
    report.add(seconds_since(begin));
  });
  for (const auto& rank : found) EXPECT_GT(rank[0], 0.25);
}

// --- Threads

std::vector<int> allowed_cores() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void bind(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) throw MachineError("cannot bind to cores");
}

/// Returns the thread counts of ranks that are bound to these cores.
std::vector<double> threads_of(const std::vector<std::vector<int>>& cores, const std::vector<std::string>& hosts = {},
                               const char* omp_num_threads = "", bool by_torchrun = false) {
  WorldOptions options;
  options.is_elastic = by_torchrun;
  options.hosts = hosts;
  options.before = [&](int rank) {
    ::unsetenv("FURLONG_POOL_THREADS");
    ::setenv("OMP_NUM_THREADS", omp_num_threads, 1);
    bind(cores[static_cast<std::size_t>(rank)]);
  };
  std::vector<double> threads;
  for (const auto& found : run_world(
           static_cast<int>(cores.size()),
           [](ProcessGroup&group, const Report&report) { report.add(group.default_threads()); }, options))
    threads.push_back(found.at(0));
  return threads;
}

TEST(ProcessGroupTest, RanksOnTheSameCoresShareThreads) {
  const std::vector<int> all = allowed_cores();
  const auto usable = static_cast<double>(read_machine().cpu.usable_cores());
  const auto half = std::max(1.0, std::floor(usable / 2));
  EXPECT_EQ(threads_of({all, all}), (std::vector<double>{half, half}));
  EXPECT_EQ(threads_of({{all[0]}, {all[0]}}), (std::vector<double>{1, 1})) << "expected at least one thread";
  EXPECT_EQ(threads_of({all, all}, {"one", "another"}), (std::vector<double>{usable, usable}))
      << "each rank has its own host";
  EXPECT_EQ(threads_of({all, all}, {}, "1", true), (std::vector<double>{half, half})) << "torchrun sets 1 by default";
  EXPECT_EQ(threads_of({all, all}, {}, "1"), (std::vector<double>{0, 0})) << "set_thread_count takes the 1";
  EXPECT_EQ(threads_of({all, all}, {}, "3,2"), (std::vector<double>{0, 0})) << "set_thread_count takes the 3";
  if (all.size() < 2 || usable < static_cast<double>(all.size()))
    GTEST_SKIP() << "one core, or a container with a share of them";
  EXPECT_EQ(threads_of({{all[0]}, {all[1]}}), (std::vector<double>{1, 1}));
  const std::vector<int> others(all.begin() + 1, all.end());
  // Two ranks share the first core; half a core adds no thread.
  EXPECT_EQ(threads_of({all, {all[0]}}), (std::vector<double>{static_cast<double>(all.size()) - 1, 1}));
  EXPECT_EQ(threads_of({others, {all[0]}}), (std::vector<double>{static_cast<double>(all.size()) - 1, 1}));
}

// --- Faults

constexpr auto timeout = 6s;
/// Seconds that a loaded machine may add.
constexpr double patience = 20;

/// A rank that reports "running" and then communicates forever.
void talk(
    ProcessGroup& group, const Report& report, const std::function<void(int)>& sometimes = [](int) {}) {
  group.barrier();
  report.say("running");
  for (int i = 0;; ++i) {
    group.barrier();
    sometimes(i);
    std::this_thread::sleep_for(5ms);
  }
}

/// A rank that computes without communicating.
[[noreturn]] void compute(ProcessGroup& group, const Report& report) {
  group.barrier();
  report.say("running");
  for (volatile std::uint64_t i = 0;;) i = i + 1;
}

/// The given ranks fail in their sixth round of talk().
World::Body failing(const std::vector<int>& ranks, const std::function<void()>& fault) {
  return [=](ProcessGroup& group, const Report& report) {
    const bool fails = std::count(ranks.begin(), ranks.end(), group.rank()) > 0;
    talk(group, report, [&](int i) {
      if (fails && i == 5) fault();
    });
  };
}

struct FaultCase {
  std::string name;
  int size;
  World::Body body;
  std::function<void(World&)> action;
  std::vector<int> statuses;  ///< -1: any but 0; -2: still stopped
  std::string line;           ///< expected in the one error line
};

std::vector<std::string> error_lines(const std::string& errors) {
  std::vector<std::string> found;
  std::istringstream lines(errors);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error: ")) found.push_back(line);
  }
  return found;
}

void expect_end(World& world, const FaultCase& one) {
  const auto begin = steady_clock::now();
  for (int rank = 0; rank < one.size; ++rank) {
    const int expected = one.statuses[static_cast<std::size_t>(rank)];
    if (expected == -2) continue;
    const int status = world.wait(rank);
    if (expected == -1) {
      EXPECT_NE(status, 0);
    } else {
      EXPECT_EQ(status, expected) << "rank " << rank;
    }
  }
  const double seconds = seconds_since(begin);
  EXPECT_LT(seconds, std::chrono::duration<double>(timeout).count() + patience);
  std::printf("%s: %.1f s\n", one.name.c_str(), seconds);
  const std::vector<std::string> lines = error_lines(world.errors());
  ASSERT_EQ(lines.size(), 1u) << world.errors();
  if (one.line.starts_with("error: "))
    EXPECT_THAT(lines[0], ::testing::StartsWith(one.line));
  else
    EXPECT_THAT(lines[0], HasSubstr(one.line));
}

const std::function<void(World&)> nothing = [](World&) {};
std::function<void(World&)> killing(const std::vector<int>& ranks, int signal) {
  return [=](World& world) {
    for (const int rank : ranks) world.wait_for_words(rank);
    for (const int rank : ranks) world.kill(rank, signal);
  };
}

/// Rank 0 reports its error and then hangs.
World::Body hanging_after(const std::function<void()>& fault) {
  return [=](ProcessGroup& group, const Report& report) {
    if (!group.is_first()) compute(group, report);
    group.barrier();
    try {
      fault();
    } catch (const std::exception& error) {
      try {
        group.fail(error);
      } catch (const PeerError&) {  // would be printed after the code that hangs now
      }
    }
    for (;;) std::this_thread::sleep_for(1s);
  };
}

std::vector<FaultCase> fault_cases() {
  const World::Body talking = [](ProcessGroup& group, const Report& report) { talk(group, report); };
  const auto full = [] { throw MachineError("the disk is full"); };
  const auto wrong = [] { throw UserError("a wrong key"); };
  const std::string of_rank_1 = "error: rank 1 on host here failed: error: the disk is full";
  return {
      {"rank 1 throws", 3, failing({1}, full), nothing, {1, 1, 1}, of_rank_1},
      {"rank 0 throws", 3, failing({0}, wrong), nothing, {2, 2, 2}, "error: a wrong key"},
      {"rank 1 throws alone",
       3,
       failing({1}, wrong),
       nothing,
       {2, 2, 2},
       "rank 1 on host here failed: invalid input: a wrong key"},
      {"two throw", 3, failing({1, 2}, full), nothing, {1, 1, 1}, "failed: error: the disk is full"},
      {"all throw", 3, failing({0, 1, 2}, wrong), nothing, {2, 2, 2}, "error: a wrong key"},
      {"all throw, rank 1 first",
       3,
       [=](ProcessGroup& group, const Report&) {
         group.barrier();
         if (group.rank() != 1) std::this_thread::sleep_for(100ms);
         wrong();
       },
       nothing,
       {2, 2, 2},
       "error: a wrong key"},
      {"rank 2 is killed", 3, talking, killing({2}, SIGKILL), {1, 1, 137}, "error: rank 2 on host here failed: "},
      {"rank 0 is killed", 3, talking, killing({0}, SIGKILL), {137, 1, 1}, "error: rank 0 on host here failed: "},
      {"rank 1 is stopped", 3, talking, killing({1}, SIGSTOP), {1, -2, 1}, "error: rank 1 on host here failed: "},
      {"rank 0 is stopped", 3, talking, killing({0}, SIGSTOP), {-2, 1, 1}, "error: rank 0 on host here failed: "},
      {"rank 1 ends without leaving",
       2,
       failing({1}, [] { throw EndsWithoutLeaving(); }),
       nothing,
       {1, 0},
       "error: rank 1 on host here failed: "},
      {"rank 1 throws while the others leave",
       3,
       [=](ProcessGroup& group, const Report&) {
         group.barrier();
         if (group.rank() != 1) return;
         std::this_thread::sleep_for(300ms);
         full();
       },
       nothing,
       {1, 1, 1},
       of_rank_1},
      {"rank 1 throws while rank 2 computes",
       3,
       [=](ProcessGroup& group, const Report& report) {
         if (group.rank() == 2) compute(group, report);
         group.barrier();
         if (group.rank() == 1) full();
         group.barrier();
       },
       nothing,
       {1, 1, 1},
       of_rank_1},
      {"rank 1 throws while rank 0 computes",
       2,
       [=](ProcessGroup& group, const Report& report) {
         if (group.rank() == 0) compute(group, report);
         group.barrier();
         full();
       },
       nothing,
       {1, 1},
       of_rank_1},
      {"rank 0 is killed while rank 1 computes",
       2,
       [](ProcessGroup& group, const Report& report) { compute(group, report); },
       killing({0}, SIGKILL),
       {137, 1},
       "error: rank 0 on host here failed: "},
      {"ranks 0 and 1 are killed",
       4,
       talking,
       killing({0, 1}, SIGKILL),
       {137, 137, 1, 1},
       "error: rank 0 on host here failed: "},
      {"ranks 0 and 1 are stopped",
       4,
       talking,
       killing({0, 1}, SIGSTOP),
       {-2, -2, 1, 1},
       "error: rank 0 on host here failed: "},
      {"rank 0 hangs after a machine error",
       2,
       hanging_after(full),
       nothing,
       {1, 1},
       "error: rank 0 on host here failed: error: the disk is full"},
      {"rank 0 hangs after a user error",
       2,
       hanging_after(wrong),
       nothing,
       {2, 2},
       "error: rank 0 on host here failed: invalid input: a wrong key"},
      {"another thread of rank 1 fails",
       3,
       [=](ProcessGroup& group, const Report& report) {
         if (group.is_first()) compute(group, report);
         std::future<void> thread;
         if (group.rank() == 1)
           thread = std::async(std::launch::async, [&] { group.report(MachineError("the disk is full")); });
         group.barrier();
         group.barrier();
       },
       nothing,
       {1, 1, 1},
       of_rank_1},
  };
}

// Several cases run at the same time, because most of the time is waiting.
TEST(ProcessGroupFaults, AllRanksEndAndOneReportsTheError) {
  WorldOptions options;
  options.timeout = timeout;
  std::vector<FaultCase> cases = fault_cases();
  for (std::size_t first = 0; first < cases.size(); first += 5) {
    const std::size_t last = std::min(cases.size(), first + 5);
    std::vector<std::unique_ptr<World>> worlds;
    for (std::size_t i = first; i < last; ++i)
      worlds.push_back(std::make_unique<World>(cases[i].size, cases[i].body, options));
    for (std::size_t i = first; i < last; ++i) cases[i].action(*worlds[i - first]);
    for (std::size_t i = first; i < last; ++i) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, cases[i].name);
      expect_end(*worlds[i - first], cases[i]);
    }
  }
}

// The store is lost together with rank 0, so hosts cannot agree on who reports: one remaining rank of each host does.
TEST(ProcessGroupFaults, EachHostReportsTheLossOfRankZeroOnce) {
  WorldOptions options;
  options.timeout = timeout;
  options.hosts = {"one", "one", "two", "two"};
  const World::Body talking = [](ProcessGroup& group, const Report& report) { talk(group, report); };
  for (const std::vector<int>& victims : {std::vector<int>{0, 1}, {0}}) {
    World world(4, talking, options);
    killing(victims, SIGKILL)(world);
    world.wait();
    for (const int first : {0, 2}) {
      const std::vector<std::string> lines = error_lines(world[first].errors() + world[first + 1].errors());
      const bool is_left = first > 0 || victims.size() == 1;
      ASSERT_EQ(lines.size(), is_left ? 1u : 0u) << world.errors();
      if (is_left) {
        EXPECT_THAT(lines[0], HasSubstr("error: rank 0 on host one failed: "));
      }
    }
  }
}

// A computation that does not notice the fault is terminated a fifth of the timeout after the fault is known.
TEST(ProcessGroupFaults, ComputingRankIsTerminatedInTime) {
  WorldOptions options;
  options.timeout = 10s;
  World world(
      2,
      [](ProcessGroup& group, const Report& report) {
        if (group.rank() == 0) compute(group, report);
        group.barrier();
        throw MachineError("broken");
      },
      options);
  world.wait_for_words(0);
  EXPECT_EQ(world.wait(1), 1);
  const auto begin = steady_clock::now();
  EXPECT_EQ(world.wait(0), 1);
  EXPECT_GT(seconds_since(begin), 0.5) << "the rank had no time to end by itself";
  EXPECT_LT(seconds_since(begin), 2 + patience);
  EXPECT_THAT(world.errors(), HasSubstr("error: rank 1 on host here failed: error: broken"));
}

}  // namespace
}  // namespace furlong
