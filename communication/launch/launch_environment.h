#pragma once
// Rank, world size and rendezvous address of this process, from the variables that the launcher sets.
#include <cstdint>
#include <string>

#include "communication/launch/environment_reader.h"

namespace furlong {

/// A rank's place in its job, as the launcher's environment variables give it.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< rank among the ranks on this host
  int local_world_size = 1;  ///< number of ranks on this host
  /// "none" (one process), "furlong", "torchrun", "environment variables" (RANK and the others, from elsewhere),
  /// "open_mpi", "pmi" or "slurm".
  std::string launcher = "none";
  /// torchrun itself set the variables (TORCHELASTIC_*). It sets OMP_NUM_THREADS=1 for several ranks unless it is set.
  bool is_elastic = false;
  /// Host name, IPv4 or IPv6 address (without brackets) at which the other ranks reach rank 0.
  std::string master_address = "127.0.0.1";
  /// Port of the job store on rank 0. If none is given: 29500, or a port from 29500 to 30499 derived from the job id.
  std::uint16_t master_port = 29500;
  /// The launcher's name for this job, equal on all ranks; "" if it has none.
  std::string job_id;
  /// Secret that a process must know to join, equal on all ranks; "" if neither launcher nor user provides one. Must
  /// never be printed.
  std::string secret;
  /// The variables that the secret comes from, for messages. "" if there is no secret: the store then cannot
  /// authenticate its clients.
  std::string secret_source;
  std::string host;  ///< the cluster's name for this host
};

/// Returns the name of this host. Throws MachineError if it cannot be read.
std::string this_host();

/// Detects the launcher. Uses the first of these sets of variables that is present:
///   1. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (torchrun, `furlong launch`, or set by hand).
///      LOCAL_WORLD_SIZE may be omitted if MASTER_ADDR is a loopback address or the world size is 1.
///   2. OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} (Open MPI's mpirun, also inside Slurm).
///   3. PMI_RANK, PMI_SIZE with MPI_LOCALRANKID, MPI_LOCALNRANKS (hydra) or PMI_LOCAL_RANK, PMI_LOCAL_SIZE (PALS).
///   4. Slurm's step variables. The shell of sbatch or salloc is not a step: one process.
/// Without any of them: one process. `furlong launch` sets FURLONG_LAUNCHER=furlong.
///
/// MASTER_ADDR and MASTER_PORT override every launcher. Without MASTER_ADDR the address is 127.0.0.1 if all ranks are
/// on this host, else the first host of Slurm's node list, else an error that asks for it. torchrun's agent runs its
/// own store on MASTER_PORT, so the job store uses the next port. FURLONG_JOB_SECRET overrides the launcher's job id.
///
/// The result depends on the arguments only. Throws UserError for an incomplete set, a number out of range,
/// contradictory ranks, or an invalid node list.
LaunchEnvironment discover_launch(const EnvironmentFunction& environment = process_environment,
                                  const std::string& host = this_host());

}  // namespace furlong
