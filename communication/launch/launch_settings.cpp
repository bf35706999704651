#include "communication/launch/launch_settings.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>

#include "communication/launch/core_split.h"
#include "communication/launch/launch_environment.h"
#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"

namespace furlong {
namespace {

/// Refuses to run inside a job: each rank would start its own job, and these jobs would write the same files.
void refuse_inside_a_job(const EnvironmentReader& variables, const EnvironmentFunction& environment) {
  if (const auto rank = variables.find("RANK")) {
    throw UserError(
        "RANK={}: this process is already a rank of a job; start furlong launch once per job, or unset RANK",
        printable(*rank));
  }
  const LaunchEnvironment found = discover_launch(environment);
  if (found.world_size > 1) {
    throw UserError(
        "furlong launch: this process is already rank {} of {} (launcher: {}), and each rank would start its own job; "
        "run the command with that launcher, without furlong launch",
        found.rank, found.world_size, found.launcher);
  }
}

void check(const LaunchOptions& options) {
  if (options.processes < 1)
    throw UserError("--processes {}: expected at least 1, one rank for each device or group of cores",
                    options.processes);
  if (!(options.timeout >= 0 && options.timeout <= 1e6))
    throw UserError("--timeout {}: expected 0 to 1000000 seconds", options.timeout);
  if (options.master_port < 0 || options.master_port > 65535)
    throw UserError("--master-port {}: expected a port from 1 to 65535; omit it to use a free port",
                    options.master_port);
  if (options.arguments.empty())
    throw UserError(
        "furlong launch: no command; expected the command of each rank, such as furlong launch --processes 2 train "
        "c.yaml");
}

std::string random_secret() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw MachineError("the system provides no random bytes: {}", error_text(errno));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace

LaunchSettings launch_settings(const LaunchOptions& options, const EnvironmentFunction& environment) {
  check(options);
  const EnvironmentReader variables(environment);
  refuse_inside_a_job(variables, environment);
  LaunchSettings settings;
  settings.processes = options.processes;
  settings.host = this_host();
  settings.secret = random_secret();
  settings.cores = read_machine().cpu.usable_cores();
  const int most = std::max(64, 16 * settings.cores);
  if (options.processes > most)
    throw UserError("--processes {}: expected at most {}, which is 16 for each of {} cores and at least 64",
                    options.processes, most, settings.cores);
  settings.threads = std::max(1, settings.cores / settings.processes);
  if (const auto requested = requested_threads(environment)) {
    settings.threads = requested->count;
    settings.thread_source = fmt::format("{}={} as set", requested->variable, requested->count);
  }
  settings.core_blocks = split_cores(neighboring_cores(), settings.processes, settings.threads);
  return settings;
}

std::string LaunchSettings::text() const {
  std::string places;
  if (!core_blocks.empty() && processes > 1) {
    std::vector<std::string> lists;
    for (const auto& block : core_blocks) lists.push_back(core_list(block));
    places = processes <= 8 ? fmt::format(" on its own cores ({})", fmt::join(lists, " | "))
                            : fmt::format(" on {} cores each", core_blocks.back().size());
  }
  return fmt::format(
      "{} rank{} on {}, {}{} thread{} ({}){}; rendezvous at 127.0.0.1:{}", processes, processes == 1 ? "" : "s", host,
      processes == 1 ? "" : "each with ", threads, threads == 1 ? "" : "s",
      thread_source.empty() ? fmt::format("OMP_NUM_THREADS={}", threads) : thread_source, places, master_port);
}

std::vector<std::string> LaunchSettings::environment_of(int rank, const std::vector<std::string>& inherited) const {
  std::map<std::string, std::string> ours = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(processes)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(processes)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(master_port)},
      {"FURLONG_LAUNCHER", "furlong"},      {"FURLONG_JOB_SECRET", secret}};
  std::map<std::string, std::string> unless_set = {{"OMP_NUM_THREADS", std::to_string(threads)}};
  std::vector<std::string> result;
  for (const std::string& variable : inherited) {
    const std::size_t end = variable.find('=');
    const std::string name = variable.substr(0, end);
    if (ours.contains(name)) continue;
    if (const auto found = unless_set.find(name); found != unless_set.end()) {
      if (end == std::string::npos || end + 1 == variable.size()) continue;  // an empty variable counts as not set
      unless_set.erase(found);
    }
    result.push_back(variable);
  }
  ours.merge(unless_set);
  for (const auto& [name, value] : ours) result.push_back(name + "=" + value);
  return result;
}

Socket reserve_port(int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw MachineError("cannot create a socket: {}", error_text(errno));
  const int yes = 1;
  const auto share = [&] { setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); };
  if (port != 0) share();  // an earlier job may have left connections on a chosen port
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (port == 0)
      throw MachineError("no free port on 127.0.0.1: {}; choose a port with --master-port", error_text(error));
    throw UserError(
        "--master-port {}: cannot be used on 127.0.0.1: {}; choose another port, or omit it to use a free one", port,
        error_text(error));
  }
  share();
  return socket;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> result;
  for (char** variable = environ; variable && *variable; ++variable) result.emplace_back(*variable);
  return result;
}

}  // namespace furlong
