#pragma once
// Which process of how many this is, and where rank 0 is to be met, from what the launcher left in the environment.
#include <cstdint>
#include <string>

#include "communication/launch/environment_reader.h"

namespace furlong {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the processes on this host
  int local_world_size = 1;  ///< processes on this host
  /// "none" (one process), "furlong", "torchrun" (also any other source of RANK and its companions), "open_mpi", "pmi"
  /// or "slurm".
  std::string launcher = "none";
  /// Name, IPv4 or IPv6 address (without brackets) at which the others reach rank 0.
  std::string master_address = "127.0.0.1";
  /// The port for our own store on rank 0: free as far as the launcher says. 29500, or 29500 to 30499 by the job id,
  /// where none was given.
  std::uint16_t master_port = 29500;
  /// What the launcher calls this job, equal on all ranks; "" where it has no name for it.
  std::string job_id;
  /// What a process must know to join; equal on all ranks, never to be printed; "" where neither launcher nor user gave
  /// one.
  std::string secret;
  /// The variables that the secret comes from, for messages; "" where there is none: then the store cannot tell friend
  /// from stranger.
  std::string secret_source;
  std::string host;  ///< this host, as the cluster calls it
};

/// The name of this host.
std::string this_host();

/// Reads, in this order:
///   1. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (torchrun, `furlong launch`, or by hand);
///      LOCAL_WORLD_SIZE may be left out where MASTER_ADDR is a loopback address, and of one process;
///   2. OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE} (Open MPI's mpirun, inside Slurm too);
///   3. PMI_RANK, PMI_SIZE with MPI_LOCALRANKID, MPI_LOCALNRANKS (hydra) or PMI_LOCAL_RANK, PMI_LOCAL_SIZE (PALS);
///   4. Slurm's step variables. The shell of sbatch or salloc is no step of its own: one process.
/// None of them: one process. FURLONG_LAUNCHER=furlong is how `furlong launch` signs.
///
/// MASTER_ADDR and MASTER_PORT win under every launcher. Without MASTER_ADDR: 127.0.0.1 where all processes are on this
/// host, under Slurm the first host of the node list, otherwise an error that asks for it. torchrun's agent keeps a
/// store of its own on MASTER_PORT: ours takes the next port. FURLONG_JOB_SECRET wins over the launcher's job id.
///
/// Pure: the result depends on the arguments alone. Throws UserError for a set with missing parts, a number out of
/// range, ranks that contradict each other, or a node list that cannot be read.
LaunchEnvironment discover_launch(const EnvironmentFunction& environment = process_environment,
                                  const std::string& host = this_host());

}  // namespace furlong
