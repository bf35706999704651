#include "communication/launch/launch_environment.h"

#include <gtest/gtest.h>

#include "tests/communication/launch/launch_captures.h"

namespace furlong {
namespace {

TEST(LaunchUnderSlurm, MpirunInsideSlurmTakesPrecedence) {
  // mpirun inside sbatch -N 2 -n 3: rank 2, started by one of the two daemons that mpirun started with srun.
  const Variables inside = with(with(kSrun, kOpenMpi), {{"OMPI_COMM_WORLD_RANK", "2"},
                                                        {"OMPI_COMM_WORLD_SIZE", "3"},
                                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                                        {"SLURM_STEP_ID", "5"},
                                                        {"SLURM_STEP_NUM_TASKS", "2"},
                                                        {"SLURM_PROCID", "1"},
                                                        {"SLURM_GTIDS", "1"},
                                                        {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  const LaunchEnvironment launch = discover(inside);
  expect_ranks(launch, "open_mpi", 2, 3, 0, 1);
  EXPECT_EQ(launch.master_address, "gpu-a1");
  EXPECT_EQ(launch.job_id, "274464769");
  // The step of the daemons may omit the first host, where mpirun runs and places rank 0.
  EXPECT_EQ(discover(with(inside, {{"SLURM_STEP_NODELIST", "gpu-a2"}})).master_address, "gpu-a1");
}

TEST(LaunchUnderSlurm, HydraInsideSlurmTakesPrecedence) {
  // mpiexec.hydra inside sbatch -N 2 -n 3: rank 2 on gpu-a2. Hydra passes on gpu-a1's environment, including
  // SLURMD_NODENAME.
  const Variables third = with(kSrun, {{"PMI_RANK", "2"},
                                       {"PMI_SIZE", "3"},
                                       {"MPI_LOCALRANKID", "0"},
                                       {"MPI_LOCALNRANKS", "1"},
                                       {"SLURM_STEP_ID", "6"},
                                       {"SLURM_STEP_NUM_TASKS", "2"},
                                       {"SLURM_PROCID", "1"},
                                       {"SLURM_GTIDS", "0"},
                                       {"SLURMD_NODENAME", "gpu-a1"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  const LaunchEnvironment launch = discover(third);
  expect_ranks(launch, "pmi", 2, 3, 0, 1);
  EXPECT_EQ(launch.master_address, "gpu-a1");
  EXPECT_EQ(launch.host, "here");
  EXPECT_EQ(launch.secret, "3");
  EXPECT_EQ(launch.secret_source, "SLURM_JOB_ID");
  // One rank per host: its rank equals Slurm's by coincidence, and Slurm's other variables are still the first host's.
  expect_ranks(discover(with(third, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})), "pmi", 1, 2, 0, 1);
}

TEST(LaunchUnderSlurm, Srun) {
  const LaunchEnvironment launch = discover(kSrun);
  expect_ranks(launch, "slurm", 2, 3, 0, 1);
  EXPECT_EQ(launch.master_address, "gpu-a1");
  EXPECT_EQ(launch.job_id, "3.0");
  EXPECT_EQ(launch.secret, "3.0");
  EXPECT_EQ(launch.secret_source, "SLURM_JOB_ID and SLURM_STEP_ID");
  EXPECT_EQ(launch.host, "gpu-a2");
  const Variables first = with(kSrun, {{"SLURM_PROCID", "1"},
                                       {"SLURM_LOCALID", "1"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURM_GTIDS", "0,1"},
                                       {"SLURMD_NODENAME", "gpu-a1"}});
  const LaunchEnvironment other = discover(first);
  expect_ranks(other, "slurm", 1, 3, 1, 2);
  expect_master(other, launch.master_address, launch.master_port);
  // Variables that a script exports take precedence over srun.
  expect_master(discover(with(kSrun, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "7777"}})), "10.1.2.3", 7777);
}

TEST(LaunchUnderSlurm, SrunOnOneHostUsesLoopback) {
  // srun -n 2 from a login shell: no SLURM_DISTRIBUTION.
  const LaunchEnvironment launch = discover(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "2"},
                                                         {"SLURM_STEP_NODELIST", "gpu-a1"},
                                                         {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                         {"SLURM_PROCID", "1"},
                                                         {"SLURM_LOCALID", "1"},
                                                         {"SLURM_NODEID", "0"},
                                                         {"SLURM_GTIDS", "0,1"},
                                                         {"SLURM_DISTRIBUTION", ""},
                                                         {"SLURMD_NODENAME", "gpu-a1"}}));
  expect_ranks(launch, "slurm", 1, 2, 1, 2);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
}

TEST(LaunchUnderSlurm, UsesTheNodesOfTheStep) {
  // srun -n 1 -w gpu-a2 inside the job of two nodes.
  const LaunchEnvironment launch = discover(with(kSrun, {{"SLURM_STEP_ID", "1"},
                                                         {"SLURM_STEP_NUM_TASKS", "1"},
                                                         {"SLURM_STEP_NODELIST", "gpu-a2"},
                                                         {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                         {"SLURM_PROCID", "0"},
                                                         {"SLURM_GTIDS", "0"},
                                                         {"SLURM_NODEID", "0"}}));
  expect_ranks(launch, "slurm", 0, 1, 0, 1);
  EXPECT_EQ(launch.job_id, "3.1");
}

TEST(LaunchUnderSlurm, ArbitraryDistributionRequiresMasterAddr) {
  // srun -m arbitrary -w gpu-a2,gpu-a1,gpu-a1 and SLURM_HOSTFILE alike: rank 0 runs on gpu-a2, and the list is still
  // gpu-a[1-2].
  const Variables zero =
      with(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_GTIDS", "0"}, {"SLURM_DISTRIBUTION", "arbitrary"}});
  EXPECT_REFUSED(zero, "MASTER_ADDR is not set, and only 1 of 3 ranks are on this host (gpu-a2)");
  EXPECT_EQ(discover(with(zero, {{"MASTER_ADDR", "gpu-a2"}})).rank, 0);
}

TEST(LaunchUnderSlurm, PrefersStepVariablesToSlurmsPmi2) {
  const Variables pmi2 = with(
      kSrun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_FD", "11"}, {"PMI_JOBID", "3.3"}, {"SLURM_STEP_ID", "3"}});
  expect_ranks(discover(pmi2), "slurm", 2, 3, 0, 1);
  EXPECT_REFUSED(with(pmi2, {{"PMI_RANK", "1"}}), "is set, but not MPI_LOCALRANKID, MPI_LOCALNRANKS:");
}

TEST(LaunchUnderSlurm, ShellsOfSbatchAndSallocAreOneProcess) {
  expect_ranks(discover(kSbatchShell), "none", 0, 1, 0, 1);
  expect_ranks(discover(kSallocShell), "none", 0, 1, 0, 1);
  // mpirun in such a shell is detected as Open MPI.
  expect_ranks(discover(with(kSallocShell, kOpenMpi)), "open_mpi", 1, 2, 1, 2);
}

TEST(LaunchUnderSlurm, RejectsInheritedStepVariables) {
  // sbatch passes on the step variables of the submitting shell; the other variables belong to the new job.
  const Variables stale = with(kSbatchShell, {{"SLURM_STEP_ID", "5"},
                                              {"SLURM_STEP_NUM_TASKS", "4"},
                                              {"SLURM_STEP_NODELIST", "gpu-a1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "4"}});
  EXPECT_REFUSED(stale, "SLURM_GTIDS=0 contradicts the step's variables (4 tasks on this node): they are left over");
  EXPECT_REFUSED(
      with(stale, {{"SLURM_STEP_NODELIST", "b7"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
      "SLURMD_NODENAME=gpu-a1 contradicts the step's variables (node 0 is b7)");
}

TEST(LaunchUnderSlurm, RejectsContradictoryNodeVariables) {
  EXPECT_REFUSED(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "3"}}),
                 "SLURM_STEP_TASKS_PER_NODE=3 contradicts SLURM_STEP_NODELIST=gpu-a[1-2]");
  EXPECT_REFUSED(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}), "or SLURM_STEP_NUM_TASKS=3");
  EXPECT_REFUSED(with(kSrun, {{"SLURM_NODEID", "2"}}), "SLURM_NODEID=2: expected an integer from 0 to 1");
  EXPECT_REFUSED(with(kSrun, {{"SLURM_STEP_NODELIST", "gpu-a[1-2"}}), "SLURM_STEP_NODELIST=gpu-a[1-2: expected ']'");
  EXPECT_REFUSED(with(kSrun, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID=1 contradicts SLURM_STEP_TASKS_PER_NODE=1");
}

}  // namespace
}  // namespace furlong
