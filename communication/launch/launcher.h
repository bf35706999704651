#pragma once
// `furlong launch`: runs a program on this host as several ranks of one job, and supervises them until all have ended.
#include <string>
#include <vector>

#include "communication/launch/environment_reader.h"

namespace furlong {

/// Options of a launch.
struct LaunchOptions {
  int processes = 0;  ///< number of ranks to start, at least 1
  /// Time limit, in seconds, between the failure of one rank and the end of all others. Then they are killed.
  double timeout = 15;
  /// Time limit, in seconds, between the first exit with status 3 (stopped by a signal) and the end of all others.
  /// `timeout` if that is longer. Ranks that have saved exit together, but a rank can end before it joins the job.
  double stop_timeout = 60;
  /// Rendezvous port on 127.0.0.1; 0 chooses a free one.
  int master_port = 0;
  /// Arguments of each rank, without the program's name.
  std::vector<std::string> arguments;
  /// Path of the program. The default is this program, even if its file has been replaced meanwhile.
  std::string program = "/proc/self/exe";
  std::string name = "furlong";  ///< argv[0] of each rank
};

/// Starts all ranks, waits until they have ended, and returns the exit status of the job:
///   - 0 if all ranks ended with 0;
///   - 3 (stopped by a signal, saved) if all ranks ended with 0 or 3;
///   - 130 after a second SIGINT;
///   - otherwise the status of the rank that failed first, 128 + signal if a signal ended it. One log line names the
///     rank, its host and how it ended, unless it reported a user error (status 2) and all ranks ended in time. A rank
///     that is killed after the stop_timeout has failed.
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR=127.0.0.1, MASTER_PORT,
/// FURLONG_LAUNCHER=furlong and a random FURLONG_JOB_SECRET. OMP_NUM_THREADS divides the cores among the ranks, unless
/// it is set. Each rank is bound to its own cores if there are enough for all threads. Rank
/// 0 writes to the caller's streams. The lines of the other ranks go to standard error with the prefix "[rank k] ".
/// Standard input is empty.
///
/// SIGTERM, SIGINT, SIGUSR1 and SIGHUP are forwarded to every rank, each time they arrive; a second SIGINT kills all
/// ranks. Ctrl-Z suspends all ranks. If a rank fails, the others learn of it through their heartbeats. After `timeout`
/// seconds those that still run are killed, including stopped ones (SIGSTOP). Stopped ranks are also killed if only
/// they remain. After an exit with status 3, the others are killed after `stop_timeout`. If a rank is stopped when the
/// first other rank exits with a status, the stopped rank is reported as failed, because the others lost it. If the
/// launcher ends for any reason, the kernel kills its ranks.
///
/// Call it from a thread that lives as long as the program, in a process without other threads. Throws UserError for
/// invalid options, inside a job of several ranks, and for a port in use. Throws MachineError if a process cannot be
/// started; then no rank keeps running.
int launch(const LaunchOptions& options, const EnvironmentFunction& environment = process_environment);

}  // namespace furlong
