// Restrictions of the process that reads untrusted files.
#include "framework/io/confined_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;

[[noreturn]] void spin() {
  for (volatile bool forever = true; forever;) {
  }
  _exit(1);
}

class ConfinedProcessTest : public testing::WithTemporaryFolder {
 protected:
  ConfinedProcessTest() : file_(::open(file("input", "words").c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~ConfinedProcessTest() override { ::close(file_); }

  /// Returns the result of `attempt` in the child.
  int in_child(const std::function<int(int file)>& attempt) {
    ConfinedProcess process(file_, "input", "the library", [&](int channel, int file) {
      const int result = attempt(file);
      write_all(channel, &result, sizeof result);
    });
    process.allow(10, std::uint64_t{64} << 20);
    int result = 0;
    process.receive(&result, sizeof result);
    return result;
  }

  int file_;
};

TEST_F(ConfinedProcessTest, ReadsItsFileAndHasNoOtherDescriptors) {
  EXPECT_EQ(in_child([](int file) {
              std::array<char, 5> text{};
              return ::pread(file, text.data(), text.size(), 0) == 5 && std::string(text.data(), 5) == "words" ? 1 : 0;
            }),
            1);
  EXPECT_EQ(in_child([](int file) {
              char letter = 0;
              return ::read(file + 1, &letter, 1) < 0 ? errno : 0;
            }),
            EBADF);
}

#if defined(__x86_64__) && !defined(FURLONG_SANITIZED)
TEST_F(ConfinedProcessTest, CannotOpenFilesOrSockets) {
  if (prctl(PR_GET_SECCOMP) < 0) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EQ(in_child([](int) { return ::open("/etc/passwd", O_RDONLY) < 0 ? errno : 0; }), EPERM);
  EXPECT_EQ(in_child([](int) { return ::socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0; }), EPERM);
  EXPECT_EQ(in_child([](int) { return ::fork() < 0 ? errno : 0; }), EPERM);
  EXPECT_EQ(in_child([](int) {
              void* code =
                  ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return code == MAP_FAILED ? errno : 0;
            }),
            EPERM);
}

TEST_F(ConfinedProcessTest, LimitsMemory) {
  ConfinedProcess process(file_, "input", "the library", [](int channel, int) {
    char go = 0;
    read_all(channel, &go, 1);
    void* memory = std::malloc(std::size_t{1} << 30);
    const int result = memory == nullptr ? ENOMEM : 0;
    std::free(memory);
    write_all(channel, &result, sizeof result);
  });
  process.allow(10, std::uint64_t{64} << 20);
  process.send("g", 1);
  int result = 0;
  process.receive(&result, sizeof result);
  EXPECT_EQ(result, ENOMEM);
}
#endif

TEST_F(ConfinedProcessTest, LimitsCpuTime) {
  ConfinedProcess process(file_, "input", "the library", [](int, int) { spin(); });
  process.allow(1, std::uint64_t{64} << 20);
  char answer = 0;
  EXPECT_THAT(testing::message_of<UserError>([&] { process.receive(&answer, 1); }), HasSubstr("more than 1 s"));
}

TEST_F(ConfinedProcessTest, KillsAChildThatClosesItsChannelAndStays) {
  ConfinedProcess process(file_, "input", "the library", [](int channel, int) {
    ::close(channel);
    spin();
  });
  char answer = 0;
  EXPECT_THAT(testing::message_of<UserError>([&] { process.receive(&answer, 1); }), HasSubstr("crashed"));
}

TEST_F(ConfinedProcessTest, LaterCallsThrowTheSameAsTheFirst) {
  ConfinedProcess process(file_, "input", "the library", [](int, int) { std::abort(); });
  char answer = 0;
  for (int call = 0; call < 2; ++call) {
    EXPECT_THAT(testing::message_of<UserError>([&] { process.receive(&answer, 1); }), HasSubstr("crashed"));
    EXPECT_THAT(testing::message_of<UserError>([&] { process.send("q", 1); }), HasSubstr("crashed"));
  }
}

}  // namespace
}  // namespace furlong
