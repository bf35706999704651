#pragma once
// `furlong launch`: several copies of a program on this host as the ranks of one job, watched until the last has ended.
#include <string>
#include <vector>

#include "communication/launch/environment_reader.h"

namespace furlong {

struct LaunchOptions {
  int processes = 0;
  /// Seconds that the others have to end by themselves once one has failed; then they are killed.
  double timeout = 15;
  /// Where rank 0 is met on 127.0.0.1; 0: a port that is free.
  int master_port = 0;
  /// Of each process, behind the program's name.
  std::vector<std::string> arguments;
  std::string program = "/proc/self/exe";  ///< path; this very program, even where its file has been replaced meanwhile
  std::string name = "furlong";            ///< what the program is told to be called
};

/// Starts the processes and returns when the last has ended, with the exit status for all: 0 where all ended with 0; 3
/// (stopped by a signal, saved) where all ended with 0 or 3; 130 after a second SIGINT; otherwise that of the first
/// rank at fault, 128 + signal where a signal ended it, and one line of log names the rank, how it ended, and the host.
///
/// Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1, MASTER_PORT,
/// FURLONG_LAUNCHER=furlong and a random FURLONG_JOB_SECRET; where they are not set, OMP_NUM_THREADS and
/// FURLONG_POOL_THREADS share out the cores; where the threads of all fit, each process has cores of its own. Rank 0
/// writes where the caller writes; lines of the others go to standard error behind "[rank k] ". Standard input is
/// empty.
///
/// SIGTERM, SIGINT and SIGUSR1 are passed on to every process, each as often as it comes; but a second SIGINT kills
/// all. Ctrl-Z suspends all. When a process fails, the others learn of it from the heartbeat between them and have
/// `timeout` seconds to end; then they, stopped ones (SIGSTOP) too, are killed. So are stopped ones when nobody else is
/// left. A rank that is stopped while the first to end reports a status counts as the one at fault: it is what the
/// others missed. When the launcher ends, however, the kernel kills its processes.
///
/// Call it from a thread that lives as long as the program, in a process without other threads. Throws UserError for
/// options that make no sense, inside a job of several processes, and for a port in use; MachineError when a process
/// cannot be started (none is left then).
int launch(const LaunchOptions& options, const EnvironmentFunction& environment = process_environment);

}  // namespace furlong
