#pragma once
// Captured launcher environments, shared by the tests of launcher detection.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "communication/launch/launch_environment.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {

using Variables = std::map<std::string, std::string>;

// Captured from Open MPI 4.1.4, MPICH 4.0.2's hydra, torchrun (PyTorch 2) and Slurm 22.05.8, reduced to the relevant
// variables, with host names, addresses and ids replaced. PALS and Open MPI 5 follow their documentation.

inline const Variables kOpenMpi = {  // mpirun -n 2, rank 1
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"OMPI_MCA_ess_base_jobid", "274464769"},
    {"OMPI_MCA_orte_hnp_uri", "274464768.0;tcp://192.0.2.2:41353;tcp6://[fd00::2]:50689"},
    {"OMPI_MCA_orte_precondition_transports", "ef99efd421dca217-5abde5e6033ca62a"},
    {"PMIX_NAMESPACE", "274464769"},
    {"PMIX_RANK", "1"}};

inline const Variables kHydra = {  // mpiexec.hydra -n 2, rank 1
    {"PMI_RANK", "1"},        {"PMI_SIZE", "2"},        {"PMI_FD", "8"},
    {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "node1"}};

inline const Variables kTorchrun = {  // torchrun --no-python --nproc-per-node 2, rank 1
    {"RANK", "1"},
    {"WORLD_SIZE", "2"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"GROUP_RANK", "0"},
    {"GROUP_WORLD_SIZE", "1"},
    {"ROLE_RANK", "1"},
    {"ROLE_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "localhost"},
    {"MASTER_PORT", "44573"},
    {"TORCHELASTIC_RUN_ID", "4668d5df-e4f6-49ce-b3ba-af03a3ba386b"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_MAX_RESTARTS", "0"}};

inline const Variables kSrun = {  // srun inside sbatch -N 2 -n 3: rank 2, alone on the second node
    {"SLURM_JOB_ID", "3"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEPID", "0"},
    {"SLURM_STEP_NUM_TASKS", "3"},
    {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_STEP_NODELIST", "gpu-a[1-2]"},
    {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
    {"SLURM_PROCID", "2"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},
    {"SLURM_GTIDS", "2"},
    {"SLURM_DISTRIBUTION", "block"},
    {"SLURM_NTASKS", "3"},
    {"SLURM_NPROCS", "3"},
    {"SLURM_TASKS_PER_NODE", "2,1"},
    {"SLURM_JOB_NODELIST", "gpu-a[1-2]"},
    {"SLURM_NODELIST", "gpu-a[1-2]"},
    {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
    {"SLURMD_NODENAME", "gpu-a2"}};

inline const Variables kSbatchShell = {  // the batch script of that job
    {"SLURM_JOB_ID", "3"},   {"SLURM_JOB_NODELIST", "gpu-a[1-2]"},
    {"SLURM_LOCALID", "0"},  {"SLURM_NODEID", "0"},
    {"SLURM_NTASKS", "3"},   {"SLURM_NPROCS", "3"},
    {"SLURM_PROCID", "0"},   {"SLURM_TASKS_PER_NODE", "2,1"},
    {"SLURM_GTIDS", "0"},    {"SLURM_NODELIST", "gpu-a[1-2]"},
    {"SLURM_NNODES", "2"},   {"SLURMD_NODENAME", "gpu-a1"},
    {"ENVIRONMENT", "BATCH"}};

inline const Variables kSallocShell = {  // the shell that salloc -n 2 opens with use_interactive_step
    {"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "4294967290"},
    {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NODELIST", "gpu-a1"},
    {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
    {"SLURM_PROCID", "0"},         {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "0"},         {"SLURM_NTASKS", "2"},
    {"SLURM_TASKS_PER_NODE", "2"}, {"SLURMD_NODENAME", "gpu-a1"}};

/// Returns `base` with `changes`. An empty value counts as not set.
inline Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

inline LaunchEnvironment discover(const Variables& variables) {
  return discover_launch(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      "here");
}

inline std::string refusal(const Variables& variables) {
  return testing::message_of<UserError>([&] { discover(variables); });
}

#define EXPECT_REFUSED(variables, part) \
  EXPECT_NE(refusal(variables).find(part), std::string::npos) << refusal(variables)

inline void expect_ranks(const LaunchEnvironment& launch, const std::string& launcher, int rank, int world_size,
                         int local_rank, int local_size) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.world_size, world_size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_world_size, local_size);
}

inline void expect_master(const LaunchEnvironment& launch, const std::string& address, int port) {
  EXPECT_EQ(launch.master_address, address);
  EXPECT_EQ(launch.master_port, port);
}

}  // namespace furlong
