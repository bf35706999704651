#include "communication/launch/launch_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/communication/launch/launch_captures.h"

namespace furlong {
namespace {

TEST(LaunchEnvironment, DefaultsToOneProcess) {
  for (const Variables& variables :
       {Variables{}, Variables{{"RANK", ""}, {"MASTER_ADDR", "elsewhere"}, {"MASTER_PORT", "x"}}}) {
    const LaunchEnvironment launch = discover(variables);
    expect_ranks(launch, "none", 0, 1, 0, 1);
    expect_master(launch, "127.0.0.1", 29500);
    EXPECT_EQ(launch.job_id + launch.secret + launch.secret_source, "");
    EXPECT_EQ(launch.host, "here");
  }
}

TEST(LaunchEnvironment, ReadsTheProcessEnvironmentByDefault) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FURLONG_LAUNCHER"}) unsetenv(name);
  for (const auto& [name, value] : kOpenMpi) setenv(name.c_str(), value.c_str(), 1);
  const LaunchEnvironment launch = discover_launch();
  for (const auto& [name, value] : kOpenMpi) unsetenv(name.c_str());
  expect_ranks(launch, "open_mpi", 1, 2, 1, 2);
  EXPECT_EQ(launch.host, this_host());
  EXPECT_FALSE(launch.host.empty());
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment launch = discover(kTorchrun);
  expect_ranks(launch, "torchrun", 1, 2, 1, 2);
  expect_master(launch, "localhost", 44574);  // torchrun's own store listens on 44573
  EXPECT_EQ(launch.secret, "4668d5df-e4f6-49ce-b3ba-af03a3ba386b");
  EXPECT_EQ(launch.secret_source, "TORCHELASTIC_RUN_ID");
  EXPECT_EQ(launch.job_id, launch.secret);
}

TEST(LaunchEnvironment, UsesTheNextPortIfTorchrunsAgentHasAStore) {
  EXPECT_EQ(discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port, 44573);
  EXPECT_EQ(discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).master_port, 44574);
  EXPECT_EQ(discover(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", ""}})).master_port, 44574);
  EXPECT_EQ(discover(with(kTorchrun, {{"MASTER_PORT", "65534"}})).master_port, 65535);
  EXPECT_REFUSED(with(kTorchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535: expected an integer from 1 to 65534");
}

TEST(LaunchEnvironment, MultiHostTorchrunWithoutRunIdHasNoSecret) {
  // torchrun --nnodes 2 --master-addr ...: the run id of every such job is "none".
  const Variables second = with(kTorchrun, {{"RANK", "2"},
                                            {"WORLD_SIZE", "3"},
                                            {"LOCAL_RANK", "0"},
                                            {"LOCAL_WORLD_SIZE", "1"},
                                            {"GROUP_RANK", "1"},
                                            {"MASTER_ADDR", "node1"},
                                            {"MASTER_PORT", "29611"},
                                            {"TORCHELASTIC_RUN_ID", "none"}});
  const LaunchEnvironment launch = discover(second);
  expect_ranks(launch, "torchrun", 2, 3, 0, 1);
  expect_master(launch, "node1", 29612);
  EXPECT_EQ(launch.job_id + launch.secret + launch.secret_source, "");
  const LaunchEnvironment guarded = discover(with(second, {{"FURLONG_JOB_SECRET", "heather"}}));
  EXPECT_EQ(guarded.secret, "heather");
  EXPECT_EQ(guarded.secret_source, "FURLONG_JOB_SECRET");
}

TEST(LaunchEnvironment, ReadsRankVariablesSetByHandAndByFurlongLaunch) {
  const Variables by_hand = {
      {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "5"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "4000"}};
  const LaunchEnvironment launch = discover(by_hand);
  expect_ranks(launch, "environment variables", 5, 8, 5, 8);  // a loopback address: all ranks are on this host
  expect_master(launch, "127.0.0.1", 4000);
  EXPECT_EQ(launch.secret, "");
  EXPECT_EQ(discover(with(by_hand, {{"MASTER_ADDR", "::1"}})).local_world_size, 8);
  EXPECT_REFUSED(with(by_hand, {{"MASTER_ADDR", "node1"}}), "RANK=5 is set, but not LOCAL_WORLD_SIZE");
  expect_ranks(discover(with(by_hand, {{"MASTER_ADDR", "node1"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}})),
               "environment variables", 5, 8, 1, 4);

  // Inside a torchrun worker or mpirun, `furlong launch` marks its own ranks.
  const Variables ours = with(with(kTorchrun, kOpenMpi), with(by_hand, {{"FURLONG_LAUNCHER", "furlong"},
                                                                        {"FURLONG_JOB_SECRET", "heather"},
                                                                        {"LOCAL_WORLD_SIZE", "8"},
                                                                        {"OMPI_COMM_WORLD_SIZE", "9"}}));
  const LaunchEnvironment furlong = discover(ours);
  expect_ranks(furlong, "furlong", 5, 8, 5, 8);
  expect_master(furlong, "127.0.0.1", 4000);
  EXPECT_EQ(furlong.secret, "heather");
  EXPECT_REFUSED(with(ours, {{"FURLONG_LAUNCHER", "mpirun"}}), "FURLONG_LAUNCHER=mpirun: expected furlong");
  EXPECT_REFUSED((Variables{{"FURLONG_LAUNCHER", "furlong"}}),
                 "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT");
}

TEST(LaunchEnvironment, RejectsPartialSetsAndNamesMissingVariables) {
  EXPECT_EQ(
      refusal({{"WORLD_SIZE", "8"}}),
      "WORLD_SIZE=8 is set, but not RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: a job of several ranks needs "
      "all of them; start with torchrun or furlong launch, which set them, or unset WORLD_SIZE to run one process");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_REFUSED(with(kTorchrun, {{name, ""}}), fmt::format("is set, but not {}:", name));
  }
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_REFUSED(with(kOpenMpi, {{name, ""}}), fmt::format("is set, but not {}:", name));
  }
  for (const char* name : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    EXPECT_REFUSED(with(kHydra, {{name, ""}}), fmt::format("is set, but not {}:", name));
  }
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
                           "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"}) {
    EXPECT_REFUSED(with(kSrun, {{name, ""}}), fmt::format("is set, but not {}:", name));
  }
}

// One of these variables alone must not count as a single process.
TEST(LaunchEnvironment, RejectsAWorldSizeAboveOneAlone) {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    EXPECT_REFUSED((Variables{{name, "2"}}), fmt::format("{}=2 is set, but not", name));
  }
}

TEST(LaunchEnvironment, OpenMpi) {
  const LaunchEnvironment launch = discover(kOpenMpi);
  expect_ranks(launch, "open_mpi", 1, 2, 1, 2);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_EQ(launch.job_id, "274464769");
  EXPECT_EQ(launch.secret, "274464769:ef99efd421dca217-5abde5e6033ca62a");
  EXPECT_EQ(launch.secret_source, "PMIX_NAMESPACE and OMPI_MCA_orte_precondition_transports");
  EXPECT_EQ(discover(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}})).job_id, "274464768");
  // Open MPI 5 job ids have the form prterun-host-pid@n.
  const LaunchEnvironment five = discover(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-node1-31906@1"},
                                                          {"OMPI_MCA_orte_hnp_uri", ""},
                                                          {"OMPI_MCA_orte_precondition_transports", ""}}));
  EXPECT_EQ(five.secret, "prterun-node1-31906@1");
  EXPECT_EQ(five.secret_source, "PMIX_NAMESPACE");
}

TEST(LaunchEnvironment, MultiHostMpirunRequiresMasterAddr) {
  const Variables spread = with(
      kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(refusal(spread),
            "MASTER_ADDR is not set, and only 2 of 4 ranks are on this host (here); set it to the host of rank 0, "
            "e.g. mpirun -x MASTER_ADDR=<host>");
  const LaunchEnvironment launch = discover(with(spread, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}}));
  expect_ranks(launch, "open_mpi", 3, 4, 1, 2);
  expect_master(launch, "node1", 1234);
  const Variables hydra = with(kHydra, {{"PMI_SIZE", "3"}});
  EXPECT_REFUSED(hydra, "e.g. mpiexec -genv MASTER_ADDR <host>");
  EXPECT_EQ(discover(with(hydra, {{"MASTER_ADDR", "fd00::7"}})).master_address, "fd00::7");
}

TEST(LaunchEnvironment, Hydra) {
  const LaunchEnvironment launch = discover(kHydra);
  expect_ranks(launch, "pmi", 1, 2, 1, 2);
  expect_master(launch, "127.0.0.1", 29500);
  EXPECT_EQ(launch.secret, "");
  // mpiexec.hydra -pmi-port sets only these variables. Treating this as one process would start two runs.
  EXPECT_REFUSED(
      (Variables{{"PMI_PORT", "node1:40823"}, {"PMI_ID", "1"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
      "PMI_PORT=node1:40823 is set, but not PMI_RANK, PMI_SIZE:");
}

TEST(LaunchEnvironment, Pals) {
  const LaunchEnvironment launch = discover({{"PMI_RANK", "0"},
                                             {"PMI_SIZE", "4"},
                                             {"PMI_LOCAL_RANK", "0"},
                                             {"PMI_LOCAL_SIZE", "2"},
                                             {"PALS_APID", "f1e2d3c4"},
                                             {"MASTER_ADDR", "x1000"}});
  expect_ranks(launch, "pmi", 0, 4, 0, 2);
  EXPECT_EQ(launch.secret, "f1e2d3c4");
}

TEST(LaunchEnvironment, RejectsNumbersOutOfRange) {
  for (const char* value : {"-1", "2x", " 1", "0x1", "1.0", "99999999999999999999", "1000000"}) {
    EXPECT_REFUSED(with(kTorchrun, {{"RANK", value}}),
                   fmt::format("RANK={}: expected an integer from 0 to 999999", value));
  }
  EXPECT_REFUSED(with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: expected an integer from 1 to 1000000");
  EXPECT_REFUSED(with(kOpenMpi, {{"MASTER_PORT", "0"}}), "MASTER_PORT=0: expected an integer from 1 to 65535");
  EXPECT_REFUSED(with(kOpenMpi, {{"MASTER_PORT", "65536"}}), "MASTER_PORT=65536");
  EXPECT_REFUSED(with(kTorchrun, {{"RANK", "1\n2" + std::string(200, '9')}}), "9...: expected an integer");
  EXPECT_REFUSED(with(kTorchrun, {{"RANK", "1\n2" + std::string(200, '9')}}), "RANK=1?2999");
  EXPECT_LT(refusal(with(kTorchrun, {{"RANK", std::string(100000, '9')}})).size(), 250U);
}

TEST(LaunchEnvironment, RejectsContradictoryRanks) {
  EXPECT_REFUSED(with(kTorchrun, {{"RANK", "2"}}), "RANK=2 contradicts WORLD_SIZE=2");
  EXPECT_REFUSED(with(kTorchrun, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK=2 contradicts LOCAL_WORLD_SIZE=2");
  EXPECT_REFUSED(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}}), "LOCAL_WORLD_SIZE=3 contradicts WORLD_SIZE=2");
  EXPECT_REFUSED(with(kTorchrun, {{"LOCAL_RANK", "0"}}), "LOCAL_RANK=0 contradicts RANK=1");
  EXPECT_REFUSED(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}),
                 "OMPI_COMM_WORLD_RANK=2 contradicts OMPI_COMM_WORLD_SIZE=2");
  EXPECT_REFUSED(with(kHydra, {{"MPI_LOCALRANKID", "2"}}), "MPI_LOCALRANKID=2 contradicts MPI_LOCALNRANKS=2");
}

TEST(LaunchEnvironment, RejectsRankVariablesThatContradictTheLauncher) {
  const Variables exported = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "gpu-a1"}, {"MASTER_PORT", "4000"}};
  EXPECT_REFUSED(with(kSrun, exported),
                 "RANK=0, WORLD_SIZE=1 contradict the launcher's SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=3");
  EXPECT_REFUSED(with(kOpenMpi, with(exported, {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}})),
                 "OMPI_COMM_WORLD_RANK=1");
  EXPECT_REFUSED(with(kHydra, exported), "PMI_RANK=1, PMI_SIZE=2");
  // Valid: one torchrun agent per host under mpirun or srun, and a script that starts several processes per task.
  const Variables agent = with(
      kOpenMpi, with(kTorchrun, {{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}}));
  expect_ranks(discover(agent), "torchrun", 9, 16, 1, 8);
  expect_ranks(discover(with(agent, {{"TORCHELASTIC_RUN_ID", ""}, {"TORCHELASTIC_USE_AGENT_STORE", ""}})),
               "environment variables", 9, 16, 1, 8);
  expect_ranks(discover(with(kSbatchShell, exported)), "environment variables", 0, 1, 0, 1);
  // torchrun agents number their hosts themselves, so ranks may differ although the world sizes agree.
  const Variables numbered = {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};
  expect_ranks(discover(with(kOpenMpi, with(kTorchrun, numbered))), "torchrun", 0, 2, 0, 1);
  // mpirun's daemons are Slurm tasks; their ranks are not compared.
  const Variables daemons = {{"SLURM_STEP_ID", "5"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  const Variables agreeing = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}};
  expect_ranks(discover(with(with(kOpenMpi, daemons), with(exported, agreeing))), "environment variables", 1, 2, 0, 1);
  expect_ranks(discover(with(kSrun, with(exported, {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "1"}}))),
               "environment variables", 2, 3, 0, 1);
}

TEST(LaunchEnvironment, ChecksMasterAddrUnderEveryLauncher) {
  for (const Variables& base : {kTorchrun, kOpenMpi, kHydra, kSrun}) {
    for (const char* address : {"node1", "node-1.example.org", "10.0.0.7", "fd00::7", "fe80::1%eth0", "::1"}) {
      EXPECT_EQ(discover(with(base, {{"MASTER_ADDR", address}})).master_address, address);
    }
    EXPECT_EQ(discover(with(base, {{"MASTER_ADDR", "[fd00::7]"}})).master_address, "fd00::7");
    for (const char* address :
         {"node1:29500", "tcp://node1", "two words", "0.0.0.0", "::", "[]", "a\nb", "[fd00::7]:80"}) {
      EXPECT_REFUSED(with(base, {{"MASTER_ADDR", address}}),
                     "at which the other hosts reach rank 0; set the port in MASTER_PORT");
    }
    EXPECT_REFUSED(with(base, {{"MASTER_ADDR", std::string(254, 'a')}}),
                   "expected a host name or an IP address at which");
  }
}

TEST(LaunchEnvironment, DefaultPortsDifferBetweenJobsAndAgreeBetweenRanks) {
  std::map<int, int> ports;
  for (int job = 0; job < 200; ++job) {
    const Variables step = with(kSrun, {{"SLURM_JOB_ID", std::to_string(1000 + job)}});
    const int port = discover(step).master_port;
    EXPECT_EQ(discover(with(step, {{"FURLONG_JOB_SECRET", "heather"}})).master_port, port)
        << "a port must not depend on the secret";
    EXPECT_GE(port, 29500);
    EXPECT_LT(port, 30500);
    ++ports[port];
  }
  // 200 draws from 1000 ports give 181 distinct ports on average, with a standard deviation of about 4.
  EXPECT_GT(ports.size(), 160U);
}

}  // namespace
}  // namespace furlong
