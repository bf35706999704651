#include "communication/launch/launch_environment.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>

#include "communication/launch/slurm_nodes.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr int kMaxProcesses = 1'000'000;
constexpr int kDefaultPort = 29500;
constexpr int kDefaultPortRange = 1000;
// Slurm numbers special steps (shell, external) downwards from 2^32 - 1, and the steps of srun from 0.
constexpr std::int64_t kFirstSpecialStep = 0xffff'fff0;
constexpr std::int64_t kLastStep = 0xffff'ffff;

struct RankNames {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

/// Throws UserError if one of `required` is not set. `found` is the variable whose presence requires the whole set.
void require_all(const EnvironmentReader& variables, const std::string& found,
                 std::initializer_list<const char*> required, const char* who_sets_them) {
  const std::vector<std::string> missing = variables.missing(required);
  if (missing.empty()) return;
  throw UserError("{} is set, but not {}: a job of several ranks needs all of them; {}, or unset {} to run one process",
                  found, fmt::join(missing, ", "), who_sets_them, found.substr(0, found.find('=')));
}

/// Checks that ranks and sizes are consistent.
void check_ranks(const LaunchEnvironment& launch, const RankNames& names) {
  const auto check = [&](bool right, const char* small, int small_value, const char* large, int large_value,
                         const char* rule) {
    if (!right)
      throw UserError("{}={} contradicts {}={}: {}; check the launcher or the script that sets them", small,
                      small_value, large, large_value, rule);
  };
  check(launch.rank < launch.world_size, names.rank, launch.rank, names.world_size, launch.world_size,
        "expected rank < world size, counted from 0");
  check(launch.local_world_size <= launch.world_size, names.local_world_size, launch.local_world_size, names.world_size,
        launch.world_size, "expected local world size <= world size");
  check(launch.local_rank < launch.local_world_size, names.local_rank, launch.local_rank, names.local_world_size,
        launch.local_world_size, "expected local rank < local world size, counted from 0");
  check(launch.local_world_size < launch.world_size || launch.local_rank == launch.rank, names.local_rank,
        launch.local_rank, names.rank, launch.rank, "expected equal values if all ranks are on one host");
}

void read_ranks(const EnvironmentReader& variables, const RankNames& names, LaunchEnvironment& launch) {
  launch.rank = static_cast<int>(variables.integer(names.rank, 0, kMaxProcesses - 1));
  launch.world_size = static_cast<int>(variables.integer(names.world_size, 1, kMaxProcesses));
  launch.local_rank = static_cast<int>(variables.integer(names.local_rank, 0, kMaxProcesses - 1));
  launch.local_world_size = static_cast<int>(variables.integer(names.local_world_size, 1, kMaxProcesses));
}

/// Returns the checked MASTER_ADDR, or nothing if it is not set.
std::optional<std::string> given_address(const EnvironmentReader& variables) {
  std::optional<std::string> given = variables.find("MASTER_ADDR");
  if (!given) return std::nullopt;
  std::string address = *given;
  const auto refuse = [&](const char* expected) {
    throw UserError("MASTER_ADDR={}: expected {} at which the other hosts reach rank 0; set the port in MASTER_PORT",
                    printable(*given), expected);
  };
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  if (address.find(':') != std::string::npos) {
    in6_addr binary{};
    if (inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &binary) != 1)
      refuse("a host name or an IP address without a port");
    if (IN6_IS_ADDR_UNSPECIFIED(&binary)) refuse("the address of one host");
    return address;
  }
  const auto belongs = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
  };
  if (address.size() > 253 || !std::all_of(address.begin(), address.end(), belongs))
    refuse("a host name or an IP address");
  if (address == "0.0.0.0") refuse("the address of one host");
  return address;
}

bool is_loopback(const std::string& address) {
  in_addr binary{};
  if (inet_pton(AF_INET, address.c_str(), &binary) == 1) return ntohl(binary.s_addr) >> 24 == 127;
  return address == "localhost" || address == "::1";
}

/// Derives a port from the job id, so that two jobs on one host use different ports. XXH3 is equal on every host.
std::uint16_t default_port(const std::string& job_id) {
  if (job_id.empty()) return kDefaultPort;
  return static_cast<std::uint16_t>(kDefaultPort + XXH3_64bits(job_id.data(), job_id.size()) % kDefaultPortRange);
}

/// Determines address and port of rank 0 for launchers that do not provide them. `first_host` is rank 0's host, or ""
/// if the launcher does not provide it.
void find_master(const EnvironmentReader& variables, const std::string& first_host, const char* how_to_pass,
                 LaunchEnvironment& launch) {
  if (const auto given = given_address(variables)) {
    launch.master_address = *given;
  } else if (launch.local_world_size == launch.world_size) {
    launch.master_address = "127.0.0.1";
  } else if (!first_host.empty()) {
    launch.master_address = first_host;
  } else {
    throw UserError(
        "MASTER_ADDR is not set, and only {} of {} ranks are on this host ({}); set it to the host of rank 0, e.g. {}",
        launch.local_world_size, launch.world_size, launch.host, how_to_pass);
  }
  const std::optional<std::int64_t> port = variables.find_integer("MASTER_PORT", 1, 65535);
  launch.master_port = port ? static_cast<std::uint16_t>(*port) : default_port(launch.job_id);
}

/// Uses the user's secret if set, else the launcher's.
void choose_secret(const EnvironmentReader& variables, const std::string& launchers, const char* source,
                   LaunchEnvironment& launch) {
  if (const auto given = variables.find("FURLONG_JOB_SECRET")) {
    launch.secret = *given;
    launch.secret_source = "FURLONG_JOB_SECRET";
  } else if (!launchers.empty()) {
    launch.secret = launchers;
    launch.secret_source = source;
  }
}

/// Refuses RANK and related variables set by hand if the launcher that started this process numbers ranks differently:
/// several processes would use the same rank. torchrun and `furlong launch` are exempt, because they may run under
/// mpirun or srun, once per host.
void refuse_hand_set_contradiction(const EnvironmentReader& variables, const LaunchEnvironment& launch) {
  struct Other {
    const char* rank;
    const char* world_size;
    const char* condition;
  };
  constexpr std::array others = {Other{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
                                 Other{"PMI_RANK", "PMI_SIZE", "PMI_SIZE"},
                                 Other{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"}};
  for (const Other& other : others) {
    if (!variables.has(other.condition)) continue;
    const auto rank = variables.find_integer(other.rank, 0, kMaxProcesses - 1);
    const auto world_size = variables.find_integer(other.world_size, 1, kMaxProcesses);
    if (!rank || !world_size) continue;
    if (*world_size > launch.world_size || (*world_size == launch.world_size && *rank != launch.rank)) {
      throw UserError(
          "RANK={}, WORLD_SIZE={} contradict the launcher's {}={}, {}={}; unset RANK, WORLD_SIZE and LOCAL_RANK to "
          "use the launcher's",
          launch.rank, launch.world_size, other.rank, *rank, other.world_size, *world_size);
    }
    return;  // only the innermost launcher counts
  }
}

bool agent_store_on_master_port(const EnvironmentReader& variables) {
  // torchrun sets "True", or "False" with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. If it sets nothing, the next port is
  // the safe choice.
  if (const auto value = variables.find("TORCHELASTIC_USE_AGENT_STORE")) return *value == "True";
  return variables.has("TORCHELASTIC_RUN_ID");
}

std::optional<LaunchEnvironment> from_rank_variables(const EnvironmentReader& variables, LaunchEnvironment launch) {
  const std::optional<std::string> signature = variables.find("FURLONG_LAUNCHER");
  if (signature && *signature != "furlong") {
    throw UserError("FURLONG_LAUNCHER={}: expected furlong, which only furlong launch sets; unset it",
                    printable(*signature));
  }
  const std::string found =
      variables.first_set({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FURLONG_LAUNCHER"});
  if (found.empty()) return std::nullopt;
  require_all(variables, found, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
              "start with torchrun or furlong launch, which set them");
  launch.master_address = *given_address(variables);
  RankNames names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  if (!variables.has("LOCAL_WORLD_SIZE")) {
    // With a loopback address, or with one rank, all ranks are on this host.
    if (!is_loopback(launch.master_address) && *variables.find("WORLD_SIZE") != "1")
      require_all(variables, found, {"LOCAL_WORLD_SIZE"}, "set it to the number of ranks on this host");
    names.local_world_size = "WORLD_SIZE";
  }
  read_ranks(variables, names, launch);
  check_ranks(launch, names);
  const bool elastic = !signature && variables.has_any({"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"});
  launch.is_elastic = elastic;
  launch.launcher = signature ? "furlong" : elastic ? "torchrun" : "environment variables";
  if (!signature && !elastic) refuse_hand_set_contradiction(variables, launch);
  const bool next_port = elastic && agent_store_on_master_port(variables);
  launch.master_port =
      static_cast<std::uint16_t>(variables.integer("MASTER_PORT", 1, next_port ? 65534 : 65535) + (next_port ? 1 : 0));
  if (elastic) {
    launch.job_id = variables.find("TORCHELASTIC_RUN_ID").value_or("");
    if (launch.job_id == "none") launch.job_id.clear();  // torchrun --nnodes without --rdzv-id
  }
  choose_secret(variables, launch.job_id, "TORCHELASTIC_RUN_ID", launch);
  return launch;
}

/// Returns the first host of the Slurm job, where mpirun and hydra place rank 0 by default, or "" outside Slurm. The
/// step's first host may differ: the step of their daemons may omit the host that they run on.
std::string first_host_of_job(const EnvironmentReader& variables) {
  const auto hosts = variables.find("SLURM_JOB_NODELIST");
  return hosts ? expand_slurm_hosts("SLURM_JOB_NODELIST", *hosts).front() : "";
}

std::optional<LaunchEnvironment> from_open_mpi(const EnvironmentReader& variables, LaunchEnvironment launch) {
  constexpr RankNames names = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE"};
  const std::string found =
      variables.first_set({names.world_size, names.rank, names.local_rank, names.local_world_size});
  if (found.empty()) return std::nullopt;
  require_all(variables, found, {names.rank, names.world_size, names.local_rank, names.local_world_size},
              "start with mpirun, which sets them");
  launch.launcher = "open_mpi";
  read_ranks(variables, names, launch);
  check_ranks(launch, names);
  std::string source = "PMIX_NAMESPACE";
  if (const auto name_space = variables.find("PMIX_NAMESPACE")) {
    launch.job_id = *name_space;
  } else if (const auto uri = variables.find("OMPI_MCA_orte_hnp_uri")) {
    launch.job_id = uri->substr(0, uri->find('.'));  // "274464768.0;tcp://...": the part before the dot
    source = "OMPI_MCA_orte_hnp_uri";
  }
  std::string secret = launch.job_id;
  // A job id derived from mpirun's process id can be guessed. This key is random and equal on all ranks.
  if (const auto key = variables.find("OMPI_MCA_orte_precondition_transports")) {
    secret += ":" + *key;
    source = launch.job_id.empty() ? "OMPI_MCA_orte_precondition_transports"
                                   : source + " and OMPI_MCA_orte_precondition_transports";
  }
  find_master(variables, first_host_of_job(variables), "mpirun -x MASTER_ADDR=<host>", launch);
  choose_secret(variables, secret, source.c_str(), launch);
  return launch;
}

/// Returns true if PMI_RANK and PMI_SIZE come from srun --mpi=pmi2. Slurm's own variables then provide more.
bool pmi_is_slurms(const EnvironmentReader& variables) {
  return variables.has("SLURM_STEP_ID") && !variables.has_any({"MPI_LOCALRANKID", "PMI_LOCAL_RANK"}) &&
         variables.find("PMI_RANK") == variables.find("SLURM_PROCID") &&
         variables.find("PMI_SIZE") == variables.find("SLURM_STEP_NUM_TASKS");
}

std::optional<LaunchEnvironment> from_pmi(const EnvironmentReader& variables, LaunchEnvironment launch) {
  // With -pmi-port, hydra sets only PMI_PORT and PMI_ID, and the world size is not in the environment.
  const std::string found = variables.first_set({"PMI_SIZE", "PMI_RANK", "PMI_PORT"});
  if (found.empty() || pmi_is_slurms(variables)) return std::nullopt;
  const bool pals = variables.has("PMI_LOCAL_RANK") && !variables.has("MPI_LOCALRANKID");
  const RankNames names = {"PMI_RANK", "PMI_SIZE", pals ? "PMI_LOCAL_RANK" : "MPI_LOCALRANKID",
                           pals ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS"};
  require_all(variables, found, {names.rank, names.world_size, names.local_rank, names.local_world_size},
              "start with mpiexec (hydra, without -pmi-port), which sets them");
  launch.launcher = "pmi";
  read_ranks(variables, names, launch);
  check_ranks(launch, names);
  // Hydra has no job id (PMI_ID is a rank), but passes its own environment to all ranks. SLURM_JOB_ID is that of the
  // allocation: two of hydra's jobs in it need MASTER_PORT and FURLONG_JOB_SECRET of their own (docs/cluster.md).
  const char* source = variables.has("PALS_APID") ? "PALS_APID" : "SLURM_JOB_ID";
  launch.job_id = variables.find(source).value_or("");
  find_master(variables, first_host_of_job(variables), "mpiexec -genv MASTER_ADDR <host>", launch);
  choose_secret(variables, launch.job_id, source, launch);
  return launch;
}

/// Reads the step's nodes: returns rank 0's host and sets the local world size and host of `launch`.
std::string read_slurm_nodes(const EnvironmentReader& variables, LaunchEnvironment& launch) {
  const std::string nodes = *variables.find("SLURM_STEP_NODELIST");
  const std::string per_node = *variables.find("SLURM_STEP_TASKS_PER_NODE");
  const std::vector<std::string> hosts = expand_slurm_hosts("SLURM_STEP_NODELIST", nodes);
  const std::vector<int> tasks = expand_slurm_tasks_per_node("SLURM_STEP_TASKS_PER_NODE", per_node);
  if (hosts.size() != tasks.size() ||
      std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0}) != launch.world_size) {
    throw UserError(
        "SLURM_STEP_TASKS_PER_NODE={} contradicts SLURM_STEP_NODELIST={} ({} hosts) or SLURM_STEP_NUM_TASKS={}; start "
        "with srun, and do not export these variables",
        printable(per_node), printable(nodes), hosts.size(), launch.world_size);
  }
  const auto node =
      static_cast<std::size_t>(variables.integer("SLURM_NODEID", 0, static_cast<std::int64_t>(hosts.size()) - 1));
  launch.local_world_size = tasks[node];
  // A job submitted from within another step inherits that step's variables. Variables that Slurm sets anew in every
  // shell reveal this.
  const auto left_over = [](const char* name, const std::string& value, const std::string& expected) {
    throw UserError(
        "{}={} contradicts the step's variables ({}): they are left over from another step; start with srun, or unset "
        "SLURM_STEP_ID and SLURM_STEP_NUM_TASKS to run one process",
        name, printable(value), expected);
  };
  if (const auto ids = variables.find("SLURM_GTIDS");
      ids && std::count(ids->begin(), ids->end(), ',') + 1 != tasks[node])
    left_over("SLURM_GTIDS", *ids, fmt::format("{} tasks on this node", tasks[node]));
  if (const auto name = variables.find("SLURMD_NODENAME")) {
    if (*name != hosts[node]) left_over("SLURMD_NODENAME", *name, fmt::format("node {} is {}", node, hosts[node]));
    launch.host = *name;
  }
  // srun -m arbitrary, or SLURM_HOSTFILE, may place rank 0 on any host, although the list is sorted.
  return variables.find("SLURM_DISTRIBUTION").value_or("").starts_with("arbitrary") ? "" : hosts.front();
}

std::optional<LaunchEnvironment> from_slurm(const EnvironmentReader& variables, LaunchEnvironment launch) {
  const std::string found = variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"});
  if (found.empty()) return std::nullopt;
  require_all(variables, found,
              {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
               "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"},
              "start with srun, which sets them");
  if (variables.integer("SLURM_STEP_ID", 0, kLastStep) >= kFirstSpecialStep)
    return std::nullopt;  // the shell of salloc is one process
  launch.launcher = "slurm";
  launch.rank = static_cast<int>(variables.integer("SLURM_PROCID", 0, kMaxProcesses - 1));
  launch.world_size = static_cast<int>(variables.integer("SLURM_STEP_NUM_TASKS", 1, kMaxProcesses));
  launch.local_rank = static_cast<int>(variables.integer("SLURM_LOCALID", 0, kMaxProcesses - 1));
  const std::string first_host = read_slurm_nodes(variables, launch);
  check_ranks(launch, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"});
  launch.job_id = *variables.find("SLURM_JOB_ID") + "." + *variables.find("SLURM_STEP_ID");
  find_master(variables, first_host, "MASTER_ADDR=<host> srun ...", launch);
  choose_secret(variables, launch.job_id, "SLURM_JOB_ID and SLURM_STEP_ID", launch);
  return launch;
}

}  // namespace

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) throw MachineError("this host's name cannot be read");
  return name.data();
}

LaunchEnvironment discover_launch(const EnvironmentFunction& environment, const std::string& host) {
  const EnvironmentReader variables(environment);
  LaunchEnvironment launch;
  launch.host = host;
  for (const auto source : {from_rank_variables, from_open_mpi, from_pmi, from_slurm}) {
    if (const auto found = source(variables, launch)) return *found;
  }
  return launch;
}

}  // namespace furlong
