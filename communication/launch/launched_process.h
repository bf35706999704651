#pragma once
// Starting one process of a job so that it ends with its launcher, and what it needs of the launcher's own signals.
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "communication/job_store/socket.h"

namespace furlong {

/// While it lives, the signals that a launcher acts upon wait in a descriptor, and writing to a closed pipe is an
/// error, no signal. Made and ended in one thread, before any other is started.
class LauncherSignals {
 public:
  LauncherSignals();
  ~LauncherSignals() { restore(); }
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  int descriptor() const { return waiting_.descriptor(); }
  /// The next signal that has arrived, 0 for none.
  int next();
  /// Stops this process as Ctrl-Z does, until it is continued. Returns at once where nobody could continue it.
  void suspend() const;
  /// How signals were before; called in the new process as well.
  void restore() const noexcept;

 private:
  Socket waiting_;
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
};

struct ProcessStart {
  std::string program;                   ///< path
  std::vector<std::string> arguments;    ///< the first is the program's name for itself
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<int> cores;                ///< to run on; none: as the launcher
  bool captured = false;                 ///< whether output goes to us, or where the launcher's own goes
};

struct StartedProcess {
  pid_t process = -1;
  Socket out, err;  ///< reading ends, where captured; non-blocking
};

/// Starts a process in a group of its own (so that a terminal's Ctrl-C reaches the launcher alone), which the kernel
/// kills when the calling thread ends, however that happens. Its standard input is empty. Throws MachineError where it
/// cannot be started.
StartedProcess start_process(const ProcessStart& start, const LauncherSignals& signals);

}  // namespace furlong
