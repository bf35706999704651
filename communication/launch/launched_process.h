#pragma once
// Starts one process of a job so that it ends with its launcher, and handles the launcher's signals.
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "communication/job_store/socket.h"

namespace furlong {

/// During its lifetime, the signals that a launcher handles are delivered through a descriptor, and writing to a closed
/// pipe is an error instead of a signal. Construct and destroy it in one thread, before any other thread is started.
class LauncherSignals {
 public:
  LauncherSignals();
  ~LauncherSignals() { restore(); }
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  int descriptor() const { return waiting_.descriptor(); }
  /// Returns the next pending signal, or 0 if there is none.
  int next();
  /// Stops this process like Ctrl-Z, until it is continued. Returns immediately if nobody could continue it.
  void suspend() const;
  /// Restores the previous signal handling. Also called in the new process.
  void restore() const noexcept;

 private:
  Socket waiting_;
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
};

struct ProcessStart {
  std::string program;                   ///< path
  std::vector<std::string> arguments;    ///< argv, starting with argv[0]
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;                ///< CPU affinity; empty: the launcher's
  bool captured = false;                 ///< true: output goes to pipes; false: to the launcher's own streams
};

struct StartedProcess {
  pid_t process = -1;
  Socket out, err;  ///< read ends of the pipes if captured; non-blocking
};

/// Starts a process in its own process group, so that a terminal's Ctrl-C reaches only the launcher. The kernel kills
/// it when the calling thread ends for any reason. Its standard input is empty. Throws MachineError if it cannot be
/// started.
StartedProcess start_process(const ProcessStart& start, const LauncherSignals& signals);

}  // namespace furlong
