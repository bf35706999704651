#pragma once
// Launchers in separate processes, whose ranks are shell scripts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communication/launch/launcher.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "tests/communication/child_processes.h"

namespace furlong::launcher_testing {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Returns the state letter of a process (R, S, T, Z, ...), or 0 if it no longer exists.
inline char state_of(pid_t process) {
  const std::string text = read_file("/proc/" + std::to_string(process) + "/stat");
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos ? '\0' : text[bracket + 2];
}

/// Returns true if a process has ended, including zombies.
inline bool gone(pid_t process) {
  const char state = state_of(process);
  return state == '\0' || state == 'Z' || state == 'X';
}

/// Waits for `condition`. Returns false if it does not become true within `patience`.
inline bool comes_true(const std::function<bool()>& condition, std::chrono::milliseconds patience = 10s) {
  for (const auto end = steady_clock::now() + patience; steady_clock::now() < end; std::this_thread::sleep_for(5ms)) {
    if (condition()) return true;
  }
  return condition();
}

struct Ended {
  int status = -1;  ///< 128 + signal if a signal terminated the launcher
  std::string out, err;
  double seconds = 0;
};

struct Setup {
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::function<void()> before = {};  ///< called in the launcher's process
  int err = -1;                       ///< descriptor for standard error; -1: a file that is read at the end
};

/// One call of launch() in a separate process. Its environment contains only PATH and $D, a folder for its ranks.
class Launcher {
 public:
  Launcher(LaunchOptions options, const Setup& setup) : begin_(steady_clock::now()) {
    std::string folder = (std::filesystem::temp_directory_path() / "furlong_launcher_XXXXXX").string();
    if (!mkdtemp(folder.data())) ADD_FAILURE() << "no folder for the test";
    folder_ = folder;
    process_ = fork();
    if (process_ == 0) run(options, setup);
  }
  Launcher(int processes, const std::string& script, double timeout = 15, const Setup& setup = {})
      : Launcher(shell(processes, script, timeout), setup) {}
  ~Launcher() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      kill(process_, SIGCONT);
      waitpid(process_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  static LaunchOptions shell(int processes, const std::string& script, double timeout = 15) {
    LaunchOptions options;
    options.processes = processes;
    options.timeout = timeout;
    options.arguments = {"-c", script};
    options.program = "/bin/sh";
    options.name = "sh";
    return options;
  }

  const std::filesystem::path& folder() const { return folder_; }
  pid_t process() const { return process_; }
  void send(int signal) const { ASSERT_EQ(kill(process_, signal), 0); }
  /// Returns the content of a file in the folder.
  std::string content(const std::string& name) const { return read_file(folder_ / name); }
  /// Creates a file in the folder, or sends a line to the process that reads a named pipe there.
  void put(const std::string& name) const {
    const int file = open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    EXPECT_TRUE(file >= 0 && write(file, "\n", 1) == 1) << name << ": no process reads it";
    close(file);
  }
  bool appears(const std::string& name) const {
    return comes_true([&] { return std::filesystem::exists(folder_ / name); });
  }
  /// Returns the process ids that scripts have written with `echo $$ > $D/pid.$RANK`.
  std::vector<pid_t> ranks(int processes) const {
    std::vector<pid_t> result;
    for (int rank = 0; rank < processes; ++rank) {
      const std::string path = "pid." + std::to_string(rank);
      if (!comes_true([&] { return content(path).ends_with('\n'); }))
        ADD_FAILURE() << "rank " << rank << " did not start";
      result.push_back(std::atoi(content(path).c_str()));
    }
    return result;
  }

  /// Waits for the launcher to end. Fails the test if it does not end in time.
  Ended wait(std::chrono::milliseconds patience = 20s) {
    Ended ended;
    int status = 0;
    if (!comes_true([&] { return waitpid(process_, &status, WNOHANG) == process_; }, patience)) {
      ADD_FAILURE() << "the launcher did not end; its output: " << content("stderr").substr(0, 2000);
      return ended;
    }
    process_ = -1;
    ended.seconds = testing::seconds_since(begin_);
    ended.status = testing::exit_status(status);
    ended.out = content("stdout");
    ended.err = content("stderr");
    return ended;
  }

 private:
  [[noreturn]] void run(const LaunchOptions& options, const Setup& setup) const {
    setpgid(0, 0);  // its parent is outside its group but in its session, so that it can be suspended
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
    const std::string path = std::getenv("PATH") ? std::getenv("PATH") : "/usr/bin:/bin";
    clearenv();
    setenv("PATH", path.c_str(), 1);
    setenv("D", folder_.c_str(), 1);
    for (const auto& [name, value] : setup.environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(open((folder_ / "stdout").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), STDOUT_FILENO);
    dup2(setup.err >= 0 ? setup.err : open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666),
         STDERR_FILENO);
    close_range(3, ~0U, 0);
    int status = 1;
    try {
      configure_logging("info");
      if (setup.before) setup.before();
      status = launch(options);
    } catch (const Error& error) {
      log_error("{}", error.what());
      status = error.exit_status();
    } catch (const std::exception& error) {
      log_error("unexpected: {}", error.what());
    }
    _exit(status);
  }

  std::filesystem::path folder_;
  pid_t process_ = -1;
  steady_clock::time_point begin_;
};

/// Returns the launcher's own error lines, without the "error: " prefix.
inline std::vector<std::string> errors_of(const Ended& ended) {
  std::vector<std::string> errors;
  for (const std::string& line : lines_of(ended.err)) {
    if (line.starts_with("error: ")) errors.push_back(line.substr(7));
  }
  return errors;
}

/// Returns the launcher's only error. Fails the test if there is none, or more than one.
inline std::string error_of(const Ended& ended) {
  const std::vector<std::string> errors = errors_of(ended);
  EXPECT_EQ(errors.size(), 1u) << ended.err;
  return errors.empty() ? "" : errors[0];
}

/// Returns the lines of the ranks on standard error, without the launcher's own lines.
inline std::vector<std::string> rank_lines_of(const Ended& ended) {
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(ended.err)) {
    if (!line.starts_with("error: ") && !line.starts_with("info: ") && !line.starts_with("warning: "))
      lines.push_back(line);
  }
  return lines;
}

}  // namespace furlong::launcher_testing
