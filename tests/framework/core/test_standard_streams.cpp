#include "framework/core/standard_streams.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/communication/child_processes.h"
#include "tests/unread_output.h"

namespace furlong {
namespace {

using namespace std::chrono_literals;
using testing::UnreadOutput;

/// Takes what a reader finds at once.
void read_some(int descriptor) {
  char buffer[65536];
  EXPECT_GT(read(descriptor, buffer, sizeof buffer), 0);
}

void expect_refusal(int descriptor) {
  errno = 0;
  EXPECT_EQ(write_without_waiting(descriptor, "more\n"), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(fcntl(descriptor, F_GETFL) & O_NONBLOCK, 0) << "other processes share the flags";
}

/// Calls `body` in a process with these standard streams that does not need readers. Returns what it returned; false
/// if it hangs.
bool in_process(int out, int err, const std::function<bool()>& body) {
  const pid_t process = testing::fork_without_team();
  if (process == 0) {
    std::signal(SIGALRM, SIG_DFL);
    alarm(60);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    continue_without_readers();
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  return waitpid(process, &status, 0) == process && testing::exit_status(status) == 0;
}

TEST(StandardStreams, NeverWaitForReaders) {
  for (const auto kind : {UnreadOutput::pipe, UnreadOutput::terminal}) {
    SCOPED_TRACE(kind == UnreadOutput::pipe ? "pipe" : "terminal");
    const UnreadOutput output(kind);
    output.fill();
    expect_refusal(output.writer());
    EXPECT_FALSE(write_patiently(output.writer(), "more\n", 20ms));
    read_some(output.reader());
    EXPECT_TRUE(write_patiently(output.writer(), "more\n", 10s));
  }
}

TEST(StandardStreams, NeverWaitForReadersOfSockets) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_FALSE(write_patiently(ends[1], std::string(1 << 24, 'x'), 20ms));
  expect_refusal(ends[1]);
  close(ends[0]);
  close(ends[1]);
}

TEST(StandardStreams, WaitForSlowReaders) {
  const UnreadOutput output(UnreadOutput::pipe);
  output.fill();
  std::thread reader([&] {
    std::this_thread::sleep_for(100ms);
    read_some(output.reader());
  });
  EXPECT_TRUE(write_patiently(output.writer(), "more\n", 30s));
  reader.join();
}

TEST(StandardStreams, PatienceIsForTheWholeText) {
  const UnreadOutput output(UnreadOutput::pipe);
  output.fill();
  std::vector<char> page(static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done && read(output.reader(), page.data(), page.size()) > 0) std::this_thread::sleep_for(20ms);
  });
  EXPECT_FALSE(write_patiently(output.writer(), std::string(256 * page.size(), 'x'), 200ms));
  done = true;
  reader.join();
}

TEST(StandardStreams, LostMessagesOfOneStreamDelayItOnce) {
  const UnreadOutput read_later(UnreadOutput::pipe), full(UnreadOutput::pipe);
  full.fill();
  EXPECT_TRUE(in_process(read_later.writer(), full.writer(), [] {
    const std::int64_t before = lost_messages();
    bool correct = !write_message(STDERR_FILENO, "lost\n");
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i)
      correct = write_message(STDOUT_FILENO, "written\n") && !write_message(STDERR_FILENO, "lost\n") && correct;
    return correct && lost_messages() == before + 6 && testing::seconds_since(begin) < 3;
  }));
}

TEST(StandardStreams, MessagesAfterFragmentsStartNewLines) {
  const UnreadOutput output(UnreadOutput::pipe);
  output.fill();
  EXPECT_TRUE(in_process(output.writer(), output.writer(), [&] {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::string taken(1 << 21, '\0');
    const auto take = [&](std::size_t most) { return read(output.reader(), taken.data(), most); };
    if (take(page) != static_cast<ssize_t>(page)) return false;  // room for a part
    if (write_message(STDERR_FILENO, std::string(3 * page, 'm') + "\n")) return false;
    if (take(taken.size()) <= 0) return false;
    if (!write_message(STDERR_FILENO, "next\n") || !write_message(STDERR_FILENO, "last\n")) return false;
    const ssize_t count = take(taken.size());
    return count > 0 && taken.substr(0, static_cast<std::size_t>(count)) == "\nnext\nlast\n";
  }));
}

// No second descriptor can be opened, so that poll() has to say what fits.
TEST(StandardStreams, NeverWaitAtTheLimitOfOpenFiles) {
  for (const auto kind : {UnreadOutput::pipe, UnreadOutput::terminal}) {
    SCOPED_TRACE(kind == UnreadOutput::pipe ? "pipe" : "terminal");
    const UnreadOutput output(kind);
    output.fill();
    EXPECT_TRUE(in_process(output.writer(), output.writer(), [&] {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 1;  // poll() needs one
      char taken[65536];
      return setrlimit(RLIMIT_NOFILE, &limit) == 0 && read(output.reader(), taken, sizeof taken) > 0 &&
             write_patiently(STDERR_FILENO, "more", 10s) &&
             !write_patiently(STDERR_FILENO, std::string(1 << 20, 'x'), 20ms);
    }));
  }
}

TEST(StandardStreams, GiveUpAfterErrors) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(write_patiently(full, "more\n", 1h));
  close(full);
  EXPECT_FALSE(write_patiently(-1, "more\n", 1h));
  const int placeholder = open("/dev/null", O_RDONLY | O_CLOEXEC);  // as main() puts in place of closed descriptors
  EXPECT_FALSE(write_patiently(placeholder, "more\n", 1h));
  close(placeholder);
  UnreadOutput output(UnreadOutput::pipe);
  output.close_reader();
  std::signal(SIGPIPE, SIG_IGN);
  EXPECT_FALSE(write_patiently(output.writer(), "more\n", 1h));
  std::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace furlong
