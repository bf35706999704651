// Ranks that fail or stop before all have connected, that leave late, or whose standard error nobody reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <thread>

#include "communication/process_group.h"
#include "framework/core/log.h"
#include "framework/core/standard_streams.h"
#include "tests/trainers/parallel_testing.h"

namespace furlong {
namespace {

using parallel_testing::EndsWithoutLeaving;
using parallel_testing::Report;
using parallel_testing::seconds_since;
using parallel_testing::SharedFile;
using parallel_testing::steady_clock;
using parallel_testing::World;
using parallel_testing::WorldOptions;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using namespace std::chrono_literals;

constexpr const char* stopped = "error: stopped by a signal before all ranks had connected; run the same command again";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

const World::Body nothing = [](ProcessGroup&, const Report&) {};

/// Ends `rank` before it joins, as a signal does in the first moments of a process.
std::function<void(int)> ending(int rank, int status) {
  return [=](int own) {
    if (own == rank) ::_exit(status);
  };
}

TEST(ProcessGroupStart, RequestedStopEndsTheWaitForAMissingRank) {
  WorldOptions options;
  options.timeout = 6s;
  options.before = ending(2, 3);
  options.stop_patience = 3s;
  // Once a rank has joined the job store, it polls in a thread of its own instead of the main one.
  options.stop_requested = [](int rank) { return rank == 1 && ::gettid() != ::getpid(); };
  const auto begin = steady_clock::now();
  World world(3, nothing, options);
  EXPECT_THAT(world.wait(), ElementsAre(3, 3, 3)) << world.errors();
  EXPECT_THAT(lines_of(world.errors()), ElementsAre(stopped)) << "rank 0 reports the stop of rank 1";
  EXPECT_LT(seconds_since(begin), 40);
}

TEST(ProcessGroupStart, RequestedStopEndsTheWaitForRankZero) {
  WorldOptions options;
  options.timeout = 6s;
  options.before = ending(0, 3);
  options.stop_requested = [](int) { return true; };
  const auto begin = steady_clock::now();
  World world(3, nothing, options);
  EXPECT_THAT(world.wait(), ElementsAre(3, 3, 3)) << world.errors();
  EXPECT_THAT(lines_of(world.errors()), ::testing::AllOf(SizeIs(2), Each(stopped)));
  EXPECT_LT(seconds_since(begin), 40);
}

TEST(ProcessGroupStart, RequestedStopLeavesTimeToConnect) {
  WorldOptions options;
  options.stop_requested = [](int) { return true; };
  options.stop_patience = 60s;
  World world(
      3, [](ProcessGroup& group, const Report&) { group.barrier(); }, options);
  EXPECT_THAT(world.wait(), Each(0)) << world.errors();
}

/// Lets ranks start when the test says so.
class StartSignals {
 public:
  explicit StartSignals(int size) : files_(static_cast<std::size_t>(size)) {}
  void send(int rank) const { files_[static_cast<std::size_t>(rank)].write("x", 1); }
  void wait(int rank) const {
    while (files_[static_cast<std::size_t>(rank)].content().empty()) std::this_thread::sleep_for(5ms);
  }

 private:
  std::vector<SharedFile> files_;
};

/// Waits until the rank has written `words` to standard error. Returns false after a minute.
bool has_written(const World& world, int rank, const std::string& words) {
  for (const auto end = steady_clock::now() + 60s; steady_clock::now() < end; std::this_thread::sleep_for(5ms)) {
    if (world[rank].errors().find(words) != std::string::npos) return true;
  }
  return false;
}

/// Three ranks that warn of missing ones soon. Those in `late` start when `start` says so.
World late_world(const StartSignals& start, const std::set<int>& late) {
  WorldOptions options;
  options.connect_timeout = 150s;
  options.notice = 300ms;
  options.before = [&start, late](int rank) {
    configure_logging("warning");
    if (late.contains(rank)) start.wait(rank);
  };
  return World(
      3, [](ProcessGroup& group, const Report&) { group.barrier(); }, options);
}

TEST(ProcessGroupStart, RankZeroWarnsOfMissingRanks) {
  const StartSignals start(3);
  World world = late_world(start, {0, 1, 2});
  start.send(0);
  EXPECT_TRUE(has_written(world, 0, "rank 1, rank 2 have not arrived for ")) << world.errors();
  start.send(1);
  EXPECT_TRUE(has_written(world, 0, "rank 2 has not arrived for ")) << world.errors();
  std::this_thread::sleep_for(1s);  // rank 1 has waited, too
  start.send(2);
  EXPECT_THAT(world.wait(), Each(0)) << world.errors();
  EXPECT_THAT(world[0].errors(), HasSubstr(" s; waiting up to 150 s; check that it has started, and its log"));
  EXPECT_THAT(world[1].errors(), Not(HasSubstr("rank 2 has not arrived")));
}

TEST(ProcessGroupStart, RankOneWarnsOfMissingRankZero) {
  const StartSignals start(3);
  World world = late_world(start, {0});
  EXPECT_TRUE(has_written(world, 1, "rank 0 has not arrived for ")) << world.errors();
  start.send(0);
  EXPECT_THAT(world.wait(), Each(0)) << world.errors();
  EXPECT_THAT(world[2].errors(), Not(HasSubstr("no job store at")));
}

TEST(ProcessGroupStart, OneRankReportsAnErrorOfConnecting) {
  WorldOptions options;
  options.timeout = 6s;
  options.connect_timeout = 5s;
  options.before = ending(2, 0);
  World world(3, nothing, options);
  EXPECT_THAT(world.wait(), ElementsAre(1, 1, 0)) << world.errors();
  EXPECT_THAT(lines_of(world.errors()),
              ElementsAre(HasSubstr("failed: error: rank 2 did not arrive to connect to rank")));
}

// Rank 1 is alive, but goes to its last steps late.
TEST(ProcessGroupLeave, RankZeroWaitsForALateRank) {
  WorldOptions options;
  options.timeout = 6s;
  World world(
      2,
      [](ProcessGroup& group, const Report& report) {
        if (group.rank() == 1) {
          group.barrier();  // that of rank 0's leave()
          std::this_thread::sleep_for(2500ms);
          throw EndsWithoutLeaving();
        }
        const auto begin = steady_clock::now();
        group.leave();
        report.add(seconds_since(begin));
        throw EndsWithoutLeaving();
      },
      options);
  EXPECT_THAT(world.wait(), ElementsAre(0, 0)) << world.errors();
  ASSERT_THAT(world[0].numbers(), SizeIs(1));
  EXPECT_GT(world[0].numbers()[0], 2);
}

/// Replaces standard error with a full pipe, and lets a thread block in a write to it. Messages do not wait for their
/// reader, as in training: on a busy machine a notice of slow ranks comes first.
void block_standard_error() {
  continue_without_readers();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  while (::write(ends[1], "x", 1) == 1) {
  }
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, 0), 0);
  ASSERT_GE(::dup2(ends[1], STDERR_FILENO), 0);
  std::thread([] { std::fputs("never read", stderr); }).detach();
}

TEST(ProcessGroupFaults, RankWithFullStandardErrorEnds) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "ThreadSanitizer flushes standard error when a process ends, and would wait for the thread that writes";
#endif
  WorldOptions options;
  options.timeout = 6s;
  World world(
      2,
      [](ProcessGroup& group, const Report& report) {
        if (group.rank() == 0) block_standard_error();
        group.barrier();
        if (group.rank() == 1) throw MachineError("broken");
        report.say("running");
        for (volatile std::uint64_t i = 0;;) i = i + 1;
      },
      options);
  world.wait_for_words(0);
  EXPECT_EQ(world.wait(1), 1);
  const auto begin = steady_clock::now();
  EXPECT_EQ(world.wait(0), 1);
  EXPECT_LT(seconds_since(begin), 26);
}

}  // namespace
}  // namespace furlong
