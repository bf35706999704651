#pragma once
// Settings that `furlong launch` determines before it starts the ranks: threads, cores, rendezvous port, and the
// environment of each rank.
#include <cstdint>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/launch/environment_reader.h"
#include "communication/launch/launcher.h"

namespace furlong {

/// What `furlong launch` has determined.
struct LaunchSettings {
  int processes = 1;                          ///< number of ranks
  int cores = 1;                              ///< number of cores that this process may use
  int threads = 1;                            ///< threads of each rank
  std::string thread_source;                  ///< "OMP_NUM_THREADS=4 as set", or "" if derived from the cores
  std::vector<std::vector<int>> core_blocks;  ///< cores of each rank; empty: not bound to cores
  std::uint16_t master_port = 0;
  std::string secret;
  std::string host;

  /// Returns one line for the log: world size, threads, cores, rendezvous address.
  std::string text() const;
  /// Returns a rank's environment, as "NAME=value": the inherited variables with the rank's own.
  std::vector<std::string> environment_of(int rank, const std::vector<std::string>& inherited) const;
};

/// Checks the options and the environment, and determines all settings except the port. Throws UserError if an option
/// is invalid, or if this process already is a rank of a job.
LaunchSettings launch_settings(const LaunchOptions& options, const EnvironmentFunction& environment);

/// Reserves a port of 127.0.0.1 until the returned socket is closed; 0 lets the system choose. The job store can still
/// listen on it, because it sets SO_REUSEADDR. Throws UserError if the port is taken or not permitted.
Socket reserve_port(int port);

/// Returns this process's environment, as "NAME=value".
std::vector<std::string> inherited_environment();

}  // namespace furlong
