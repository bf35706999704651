// Ranks that fail, stop or ignore signals, forwarded signals, and a killed launcher.
#include <gmock/gmock.h>

#include "tests/communication/launch/launcher_testing.h"
#include "tests/unread_output.h"

namespace furlong {
namespace {

using namespace launcher_testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

bool all_gone(const std::vector<pid_t>& processes, std::chrono::milliseconds patience = 1s) {
  return comes_true([&] { return std::all_of(processes.begin(), processes.end(), gone); }, patience);
}

// Shell code that waits for a file and wakes often, so that traps run.
#define AWAIT(file) "while [ ! -e $D/" file " ]; do sleep 0.02; done; "

TEST(LauncherFaults, KillsRemainingRanksAfterTheTimeout) {
  // Rank 1 fails; ranks 0 and 2 ignore signals and have a child.
  Launcher launcher(3,
                    "echo $$ > $D/pid.$RANK; [ $RANK = 1 ] && sleep 0.2 && exit 6; trap '' TERM INT; sleep 30 & echo "
                    "$! > $D/child.$RANK; wait",
                    0.5);
  std::vector<pid_t> processes = launcher.ranks(3);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 6);
  EXPECT_GE(ended.seconds, 0.7) << "0.2 s until rank 1 fails, 0.5 s for the others";
  EXPECT_LT(ended.seconds, 12);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 1 (host "));
  EXPECT_THAT(error_of(ended),
              HasSubstr(") ended with status 6; ranks 0 and 2 did not end within 0.5 s and were killed"));
  for (const char* child : {"child.0", "child.2"}) processes.push_back(std::atoi(launcher.content(child).c_str()));
  EXPECT_TRUE(all_gone(processes));
}

TEST(LauncherFaults, WaitsForRanksThatEndInTime) {
  // Like ranks that learn of a fault through heartbeats: they end with their own error within the timeout.
  Launcher launcher(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 0.4; echo saved; exit 1", 15);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_EQ(ended.out, "saved\n");
  EXPECT_LT(ended.seconds, 12);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 1 (host "));
  EXPECT_THAT(error_of(ended), HasSubstr("was terminated by SIGKILL"));
  EXPECT_THAT(error_of(ended), Not(HasSubstr("rank 0")));
}

TEST(LauncherFaults, KillsAndReportsAStoppedRank) {
  Launcher launcher(2, "echo $$ > $D/pid.$RANK; [ $RANK = 1 ] && kill -STOP $$; sleep 0.3; exit 1", 0.5);
  const std::vector<pid_t> processes = launcher.ranks(2);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_GE(ended.seconds, 0.8);
  EXPECT_LT(ended.seconds, 12);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 1 (host "));
  EXPECT_THAT(error_of(ended), HasSubstr("was stopped and did not continue within 0.5 s: killed"));
  EXPECT_TRUE(all_gone(processes));
}

TEST(LauncherFaults, KillsAStoppedRankAfterTheOthersSucceed) {
  Launcher launcher(2, "[ $RANK = 1 ] && kill -STOP $$; exit 3", 0.3);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 1 (host "));
  EXPECT_LT(ended.seconds, 12);
}

// As if a signal had ended rank 1 before it joined the job that rank 0 waits for.
TEST(LauncherFaults, KillsRanksThatRemainAfterAStop) {
  LaunchOptions options = Launcher::shell(2, "echo $$ > $D/pid.$RANK; [ $RANK = 1 ] && exit 3; exec sleep 30", 0.2);
  options.stop_timeout = 0.6;
  Launcher launcher(options, {});
  const std::vector<pid_t> processes = launcher.ranks(2);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_GE(ended.seconds, 0.6);
  EXPECT_LT(ended.seconds, 12);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 0 (host "));
  EXPECT_THAT(error_of(ended), HasSubstr("did not end within 0.6 s after another rank had ended with status 3 (stopped "
                                         "by a signal): killed"));
  EXPECT_TRUE(all_gone(processes));
}

// Both time limits are equal, but that of the failure starts later.
TEST(LauncherFaults, AFailureAfterAStopStartsItsOwnTimeLimit) {
  LaunchOptions options =
      Launcher::shell(3, "[ $RANK = 0 ] && exit 3; [ $RANK = 1 ] && sleep 2 && exit 6; exec sleep 60", 6);
  options.stop_timeout = 1;  // the longer one counts
  Launcher launcher(options, {});
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 6);
  EXPECT_GE(ended.seconds, 7.9) << "2 s until rank 1 fails, 6 s for rank 2";
  EXPECT_THAT(error_of(ended), HasSubstr(") ended with status 6; rank 2 did not end within 6 s and was killed"));
}

TEST(LauncherFaults, KeepsSuspendedAndSlowRanksWithoutAFault) {
  // After a rank ends successfully, the others have no time limit. A stopped rank among running ones may continue.
  Launcher launcher(3, "echo $$ > $D/pid.$RANK; [ $RANK = 0 ] && exit 0; " AWAIT("now"), 0.2);
  const std::vector<pid_t> processes = launcher.ranks(3);
  kill(processes[1], SIGSTOP);
  std::this_thread::sleep_for(700ms);
  EXPECT_FALSE(gone(processes[1]));
  EXPECT_FALSE(gone(processes[2]));
  kill(processes[1], SIGCONT);
  launcher.put("now");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_THAT(errors_of(ended), IsEmpty());
}

TEST(LauncherFaults, ReportsASignalBeforeASimultaneousExitStatus) {
  Launcher launcher(2, "echo $$ > $D/pid.$RANK; " AWAIT("now") "[ $RANK = 1 ] && kill -KILL $$; exit 1");
  const std::vector<pid_t> processes = launcher.ranks(2);
  launcher.send(SIGSTOP);  // the launcher then observes both ends at once
  launcher.put("now");
  EXPECT_TRUE(all_gone(processes, 12s));
  launcher.send(SIGCONT);
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 128 + SIGKILL);
  EXPECT_THAT(error_of(ended), HasSubstr("rank 1 (host "));
}

TEST(LauncherFaults, KillsRemainingChildrenOfRanks) {
  Launcher launcher(2, "sleep 30 & echo $! > $D/child.$RANK");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_LT(ended.seconds, 12) << "the children hold the pipes that rank 1 wrote to";
  EXPECT_TRUE(
      all_gone({std::atoi(launcher.content("child.0").c_str()), std::atoi(launcher.content("child.1").c_str())}));
}

TEST(LauncherFaults, IgnoresOutputOfProcessesOutsideTheGroup) {
  Launcher launcher(2, "[ $RANK = 0 ] && exit 0; printf 'last words'; setsid sleep 9 & sleep 0.1");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_LT(ended.seconds, 8);
  EXPECT_THAT(rank_lines_of(ended), ElementsAre("[rank 1] last words"));
}

TEST(LauncherFaults, EndsWithAPausedReader) {
  const testing::UnreadOutput output(testing::UnreadOutput::pipe);
  output.fill();
  Launcher launcher(2, "[ $RANK = 0 ] || echo words; exit 3", 15, {{}, {}, output.writer()});
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 3);
  EXPECT_LT(ended.seconds, 12);
}

TEST(LauncherSignals, ForwardedOnceToEveryRank) {
  const char* script =
      "for s in TERM INT USR1 HUP; do trap \"echo $s >> $D/got.$RANK\" $s; done; echo $$ > $D/pid.$RANK; " AWAIT(
          "now") "exit 3";
  Launcher launcher(2, script);
  launcher.ranks(2);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR1, SIGHUP}) {
    const std::string before = launcher.content("got.0") + launcher.content("got.1");
    launcher.send(signal);
    EXPECT_TRUE(comes_true(
        [&] { return (launcher.content("got.0") + launcher.content("got.1")).size() >= before.size() + 8; }));
  }
  std::this_thread::sleep_for(100ms);  // time for a surplus signal to arrive
  launcher.put("now");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 3);
  EXPECT_THAT(errors_of(ended), IsEmpty());
  for (const char* name : {"got.0", "got.1"}) EXPECT_EQ(launcher.content(name), "TERM\nINT\nUSR1\nUSR1\nHUP\n");
}

TEST(LauncherSignals, SecondInterruptKillsAllRanks) {
  const char* script = "trap 'echo >> $D/int.$RANK' INT; trap '' TERM; echo $$ > $D/pid.$RANK; " AWAIT("never");
  Launcher launcher(2, script);
  const std::vector<pid_t> processes = launcher.ranks(2);
  launcher.send(SIGINT);
  EXPECT_TRUE(launcher.appears("int.0") && launcher.appears("int.1"));
  EXPECT_FALSE(gone(processes[0]) || gone(processes[1]));
  launcher.send(SIGINT);
  const Ended ended = launcher.wait(12s);
  EXPECT_EQ(ended.status, 130);
  EXPECT_THAT(errors_of(ended), ElementsAre(HasSubstr("second SIGINT")));
  EXPECT_TRUE(all_gone(processes));
}

void expect_forwarding_while_blocked(testing::UnreadOutput::Kind kind) {
  testing::UnreadOutput output(kind);
  Launcher launcher(
      2, "echo $$ > $D/pid.$RANK; trap 'echo >> $D/int.$RANK; exit 3' INT; [ $RANK = 0 ] || yes; " AWAIT("never"), 15,
      {{}, {}, output.writer()});
  output.close_writer();
  const std::vector<pid_t> processes = launcher.ranks(2);
  std::this_thread::sleep_for(300ms);  // now the pipe and the queue are full
  const auto resident = [&] {
    std::istringstream pages(read_file("/proc/" + std::to_string(launcher.process()) + "/statm"));
    std::int64_t all = 0, held = 0;
    pages >> all >> held;
    return held * sysconf(_SC_PAGESIZE);
  };
  const std::int64_t before = resident();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(resident() - before, 4 << 20) << "unread output must wait in the rank, not in the launcher";
  launcher.send(SIGINT);
  EXPECT_TRUE(launcher.appears("int.0"));
  launcher.send(SIGINT);
  const Ended ended = launcher.wait(12s);
  EXPECT_EQ(ended.status, 130);
  EXPECT_TRUE(all_gone(processes));
}

TEST(LauncherSignals, ForwardedWhileOutputIsBlocked) { expect_forwarding_while_blocked(testing::UnreadOutput::pipe); }

TEST(LauncherSignals, ForwardedWhileTerminalIsBlocked) {
  expect_forwarding_while_blocked(testing::UnreadOutput::terminal);
}

TEST(LauncherSignals, ReportsATerminatingSignalAsForwarded) {
  Launcher launcher(2, "echo $$ > $D/pid.$RANK; exec sleep 30");
  launcher.ranks(2);
  launcher.send(SIGTERM);
  const Ended ended = launcher.wait(12s);
  EXPECT_EQ(ended.status, 128 + SIGTERM);
  EXPECT_THAT(
      errors_of(ended),
      ElementsAre(HasSubstr("was terminated by SIGTERM, which was forwarded before the rank was ready to save")));
}

TEST(LauncherSignals, SuspensionStopsAllRanksAndTheTimeout) {
  // Rank 1 waits without a child, because a shell cannot be stopped while its child is stopped between vfork and exec.
  Launcher launcher(
      2, "mkfifo $D/now.$RANK; echo $$ > $D/pid.$RANK; [ $RANK = 0 ] && exit 7; read line < $D/now.$RANK; exit 1", 0.8);
  const std::vector<pid_t> processes = launcher.ranks(2);
  EXPECT_TRUE(comes_true([&] { return gone(processes[0]); }));
  launcher.send(SIGTSTP);
  int status = 0;
  ASSERT_TRUE(
      comes_true([&] { return waitpid(launcher.process(), &status, WNOHANG | WUNTRACED) == launcher.process(); }));
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(comes_true([&] { return state_of(processes[1]) == 'T'; }));
  std::this_thread::sleep_for(1s);
  launcher.send(SIGCONT);
  EXPECT_TRUE(comes_true([&] { return state_of(processes[1]) != 'T'; }));
  std::this_thread::sleep_for(200ms);
  launcher.put("now.1");
  const Ended ended = launcher.wait();
  EXPECT_EQ(ended.status, 7);
  EXPECT_THAT(error_of(ended), Not(HasSubstr("killed")));
}

TEST(LauncherKilled, LeavesNoRankRunning) {
  // One rank works, one ignores signals, one is stopped.
  Launcher launcher(3,
                    "echo $$ > $D/pid.$RANK; case $RANK in 0) exec sleep 30;; 1) trap '' TERM INT HUP; exec sleep 30;; "
                    "2) kill -STOP $$;; esac");
  const std::vector<pid_t> processes = launcher.ranks(3);
  EXPECT_TRUE(comes_true([&] { return state_of(processes[2]) == 'T'; }));
  launcher.send(SIGKILL);
  EXPECT_TRUE(all_gone(processes, 1s));
  EXPECT_EQ(launcher.wait().status, 128 + SIGKILL);
}

}  // namespace
}  // namespace furlong
