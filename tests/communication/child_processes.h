#pragma once
// Child processes of tests and their exit statuses.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "framework/core/release_threads.h"

namespace furlong::testing {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the exit status in a waitpid() status, or 128 + the signal that terminated the process.
inline int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// Forks. Ends the threads of parallel loops before, because a child has none of them and would wait for them forever
/// in its first loop.
inline pid_t fork_without_team() {
  release_threads();
  return ::fork();
}

/// The processes of one job, one for each rank. The destructor kills processes that were not waited for.
class ChildProcesses {
 public:
  ~ChildProcesses() {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (statuses_[i] < 0) ::kill(children_[i], SIGKILL);
    }
    wait();
  }
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  int size() const { return static_cast<int>(children_.size()); }
  void kill(int rank, int signal) const { ::kill(children_[static_cast<std::size_t>(rank)], signal); }
  /// Waits for a rank. Returns its exit status, or 128 + the signal that terminated it.
  int wait(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (statuses_[index] < 0) {
      int status = 0;
      ::waitpid(children_[index], &status, 0);
      statuses_[index] = exit_status(status);
    }
    return statuses_[index];
  }
  /// Waits for all ranks and returns their statuses.
  std::vector<int> wait() {
    for (int rank = 0; rank < size(); ++rank) wait(rank);
    return statuses_;
  }

 protected:
  ChildProcesses() = default;
  void add(pid_t child) {
    children_.push_back(child);
    statuses_.push_back(-1);
  }

 private:
  std::vector<pid_t> children_;
  std::vector<int> statuses_;  ///< -1: not yet known
};

}  // namespace furlong::testing
