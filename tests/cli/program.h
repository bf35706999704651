#pragma once
// Runs the furlong program as a user or a scheduler does.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/communication/child_processes.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

extern char** environ;

namespace furlong::testing {

/// Result of a program.
struct Finished {
  int status = -1;  ///< exit status; 128 + signal when a signal ended it
  std::string out, err;
};

/// Standard streams of a program: descriptors, or one of the constants.
struct Streams {
  static constexpr int usual = -1;   ///< no input; a file for output
  static constexpr int closed = -2;  ///< the program starts without this descriptor
  int in = usual, out = usual, err = usual;
};

/// A running furlong. Its output goes to files in `folder`, which only one program at a time can use.
class Program {
 public:
  Program(std::filesystem::path folder, const std::vector<std::string>& arguments, const Streams& streams = {})
      : folder_(std::move(folder)) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const auto add = [&](int stream, int wanted, const std::filesystem::path& file, int flags) {
      if (wanted == Streams::usual)
        posix_spawn_file_actions_addopen(&actions, stream, file.c_str(), flags, 0666);
      else if (wanted == Streams::closed)
        posix_spawn_file_actions_addclose(&actions, stream);
      else
        posix_spawn_file_actions_adddup2(&actions, wanted, stream);
    };
    add(0, streams.in, "/dev/null", O_RDONLY);
    add(1, streams.out, folder_ / "stdout", O_WRONLY | O_CREAT | O_TRUNC);
    add(2, streams.err, folder_ / "stderr", O_WRONLY | O_CREAT | O_TRUNC);
    const std::string program = program_under_test();
    std::vector<std::string> words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&process_, program.c_str(), &actions, nullptr, pointers.data(), environ) != 0) {
      process_ = -1;
      ADD_FAILURE() << program << " cannot be started";
    }
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t process() const { return process_; }
  void send(int signal) const { ASSERT_EQ(kill(process_, signal), 0); }
  bool has_ended() const {
    siginfo_t change{};
    return process_ <= 0 || (waitid(P_PID, static_cast<id_t>(process_), &change, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                             change.si_pid == process_);
  }
  /// Halts the process until send(SIGCONT). Returns false if it has ended.
  bool pause() const {
    send(SIGSTOP);
    siginfo_t state{};
    waitid(P_PID, static_cast<id_t>(process_), &state, WSTOPPED | WEXITED | WNOWAIT);
    return state.si_code == CLD_STOPPED;
  }

  /// Waits until `path` is a file of more than `bytes` bytes, at most a minute.
  void wait_for_more(const std::filesystem::path& path, std::uintmax_t bytes) const {
    std::error_code ignored;
    wait_until([&] {
      const auto size = std::filesystem::file_size(path, ignored);
      return !ignored && size > bytes;
    });
  }
  /// Polls every 10 ms; fails after a minute.
  void wait_until(const std::function<bool()>& happens) const {
    for (int i = 0; i < 6000; ++i) {
      if (happens()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "timeout; standard error starts with: " << read("stderr").substr(0, 1000);
  }

  /// Like wait(), but a program that hangs fails the test after a minute.
  Finished end_in_time() {
    wait_until([&] { return has_ended(); });
    if (!has_ended()) send(SIGKILL);
    return wait();
  }
  Finished wait() {
    Finished result;
    if (process_ <= 0) return result;
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    result.status = exit_status(status);
    result.out = read("stdout");
    result.err = read("stderr");
    return result;
  }

 private:
  std::string read(const char* name) const {
    std::ifstream stream(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::filesystem::path folder_;
  pid_t process_ = -1;
};

/// A test with a folder for its programs.
class WithProgram : public WithTemporaryFolder {
 protected:
  Finished furlong(const std::vector<std::string>& arguments) const { return Program(folder_, arguments).wait(); }
};

/// Expects a user error: status 2, and one line on standard error that contains all of `parts`.
inline void expect_user_error(const Finished& found, const std::vector<std::string>& parts) {
  EXPECT_EQ(found.status, 2) << found.err;
  EXPECT_EQ(found.out, "");
  EXPECT_THAT(found.err, ::testing::StartsWith("error: "));
  EXPECT_EQ(std::count(found.err.begin(), found.err.end(), '\n'), 1) << found.err;
  for (const std::string& part : parts) EXPECT_THAT(found.err, ::testing::HasSubstr(part));
}

}  // namespace furlong::testing
