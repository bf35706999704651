#pragma once
// What `furlong launch` decides before it starts anything: threads, cores, the meeting point, and the variables that
// say so.
#include <cstdint>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/launch/environment_reader.h"
#include "communication/launch/launcher.h"

namespace furlong {

struct LaunchSettings {
  int processes = 1;
  int cores = 1;                              ///< that this process may keep busy
  int threads = 1;                            ///< of each process
  std::string thread_source;                  ///< "OMP_NUM_THREADS=4 as set", or "" where they were derived
  std::vector<std::vector<int>> core_blocks;  ///< of each process; empty: not bound to cores
  std::uint16_t master_port = 0;
  std::string secret;
  std::string host;

  /// One line for the log: processes, threads, cores, meeting point.
  std::string text() const;
  /// The variables of this process with those of a rank: "NAME=value".
  std::vector<std::string> environment_of(int rank, const std::vector<std::string>& inherited) const;
};

/// Checks the options and the environment (throws UserError) and decides the rest, the port excepted.
LaunchSettings launch_settings(const LaunchOptions& options, const EnvironmentFunction& environment);

/// A port of 127.0.0.1 that stays ours until the socket is closed, except for who listens on it with SO_REUSEADDR, as
/// the store does. `port` 0: any. Throws UserError where it is taken or not allowed.
Socket reserve_port(int port);

/// This process's variables, "NAME=value".
std::vector<std::string> inherited_environment();

}  // namespace furlong
