#include "framework/core/standard_streams.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <thread>

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

TEST(StandardStreams, GiveUpAfterErrors) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_FALSE(write_patiently(full, "more\n", 1h));
  close(full);
  EXPECT_FALSE(write_patiently(-1, "more\n", 1h));
  UnreadOutput output(UnreadOutput::pipe);
  output.close_reader();
  std::signal(SIGPIPE, SIG_IGN);
  EXPECT_FALSE(write_patiently(output.writer(), "more\n", 1h));
  std::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace furlong
