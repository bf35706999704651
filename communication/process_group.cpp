#include "communication/process_group.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "communication/connect_stop.h"
#include "communication/gloo/gloo_communicator.h"
#include "communication/job_store/socket.h"
#include "communication/job_store/store_client.h"
#include "communication/job_store/store_server.h"
#include "communication/last_line.h"
#include "communication/nccl/nccl_communicator.h"
#include "framework/core/clock.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"

namespace furlong {
namespace {

using std::chrono::milliseconds;

/// Prefixes of a fault that a rank reported itself. The reason of a lost rank has no such prefix. All ranks end with
/// the status of the first failure: 2 for invalid input.
constexpr std::string_view report_prefix = "error: ", input_prefix = "invalid input: ";

/// Fault of a rank that was stopped while the ranks connected, with the prefix, and its message.
constexpr std::string_view stop_reason =
    "error: stopped by a signal before all ranks had connected; run the same command again";
const std::string stopped_text(stop_reason.substr(report_prefix.size()));
constexpr int stopped_status = 3;
/// Longest time, by default, from a signal until a rank no longer waits for others.
constexpr milliseconds longest_stop_patience{3000};

bool is_stop(const Fault& fault) { return fault.reason == stop_reason; }
bool is_of_input(const Fault& fault) { return fault.reason.starts_with(input_prefix); }
bool is_report(const Fault& fault) { return fault.reason.starts_with(report_prefix) || is_of_input(fault); }
int status_of(const Fault& fault) { return is_stop(fault) ? stopped_status : is_of_input(fault) ? 2 : 1; }

/// Divides the timeout. With 15 s: a heartbeat every 2 s, silent ranks are lost after 10 s, broken connections after
/// 4 s, ranks have 3 s to end, and 2 s are spare.
StoreTimes times_within(milliseconds timeout) {
  StoreTimes times;
  times.heartbeat_interval = timeout * 2 / 15;
  times.timeout = timeout * 10 / 15;
  times.grace = timeout * 4 / 15;
  return times;
}

/// The cores that a process may use, and its host. Exchanged by default_threads(). No cores if the kernel has more
/// than fit the mask.
struct Cores {
  std::uint64_t host = 0;
  std::array<std::uint8_t, CPU_SETSIZE / 8> allowed{};

  static Cores own(const std::string& host) {
    Cores cores;
    cores.host = std::hash<std::string>{}(host);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.allowed[core / 8] |= static_cast<std::uint8_t>(1u << core % 8);
    return cores;
  }
  bool has(std::size_t core) const { return (allowed[core / 8] >> core % 8 & 1u) != 0; }
  int count() const {
    int cores = 0;
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) cores += has(core);
    return cores;
  }
};

}  // namespace

/// The open resources of a group of several ranks.
class ProcessGroup::Joined {
 public:
  Joined(const LaunchEnvironment& environment, const Options& options)
      : environment_(environment),
        connect_timeout_(options.connect_timeout),
        notice_after_(options.notice_after),
        notice_every_(options.notice_every),
        patience_(options.timeout / 5),
        times_(times_within(options.timeout)),
        watchdog_([this] { watch(); }) {}

  ~Joined() {
    stop_watchdog();
    for (const auto& open : {device_communicator_.get(), communicator_.get()})
      if (!left_ && open) open->abort("this process ended");
    device_communicator_.reset();
    communicator_.reset();
    const std::optional<Fault> fault = store_ ? store_->fault() : std::nullopt;
    store_.reset();
    // The store ends with this process, and the other ranks learn of the fault from it: give them time. If rank 0
    // reported its own failure, the others end after it, so that a launcher sees the failed rank end first.
    if (server_ && (fault || !left_)) std::this_thread::sleep_for(std::min(patience_, milliseconds(500)));
    std::this_thread::sleep_until(stay_until_);
    if (!server_ && fault && fault->rank == 0 && is_report(*fault)) {
      wait_for_end_of_store();
      std::this_thread::sleep_for(std::min(patience_, milliseconds(500)));
    }
  }

  /// Connects the ranks. An error is reported to those that have joined.
  void connect(const Options& options) {
    const ConnectStop stop(options.stop_requested,
                           options.stop_patience.value_or(std::min(patience_, longest_stop_patience)));
    try {
      open(options, stop);
    } catch (const std::exception& error) {
      const bool waited = !store_ && dynamic_cast<const MachineError*>(&error) != nullptr;
      if (waited && stop.is_due()) throw PeerError(stopped_text, true, stopped_status);
      fail(error);
      throw;
    }
  }

  Communicator& communicator() { return *communicator_; }
  Communicator& device_communicator(const Device& device) {
    if (!device.is_gpu()) return *communicator_;
    require(!device_communicator_ || device == device_, "a rank uses one device, but both {} and {} were requested",
            device_.text(), device.text());
    device_ = device;
    if (!device_communicator_) device_communicator_ = make_nccl_communicator(*store_, nccl_options());
    return *device_communicator_;
  }
  std::unique_ptr<Communicator> split_consecutive(int size) {
    GlooOptions options = gloo_;
    options.rank = environment_.rank % size;
    options.size = size;
    options.name = fmt::format("row {} of {}, {}", environment_.rank / size, size, rows_++);
    return make_gloo_communicator(*store_, options);
  }
  const LaunchEnvironment& environment() const { return environment_; }

  void leave() {
    if (device_communicator_) {  // nothing may be under way
      const Stream stream{device_};
      device_communicator_->barrier(stream).wait();
      synchronize(stream);
      device_communicator_->check();
    }
    communicator_->barrier(Stream{}).wait();
    device_communicator_.reset();
    communicator_.reset();
    left_ = true;
    stop_watchdog();
    store_->goodbye();
    // A rank may be late, but alive. A lost rank ends the wait earlier.
    if (server_) server_->wait_for_goodbyes(times_.timeout + times_.grace);
  }

  void fail(const std::exception& error) {
    if (left_) return;
    const std::string message = error.what();
    const bool of_user = dynamic_cast<const UserError*>(&error) != nullptr;
    {
      const std::lock_guard lock(mutex_);
      own_error_ = message;  // the watchdog's time limit starts here
      own_status_ = of_user ? 2 : 1;
      changed_.notify_all();
    }
    if (!store_) return;
    const bool is_known = store_->report_fault(std::string(of_user ? input_prefix : report_prefix) + message);
    const std::optional<Fault> fault = store_->fault();
    if (!fault || (!is_known && fault->rank == environment_.rank)) return;
    const bool reported_here = is_reported_here(*fault);
    // Ranks have the same user error, whichever was first. An error of the machine has the other message.
    const bool of_machine = dynamic_cast<const MachineError*>(&error) != nullptr;
    if (reported_here && (of_user || (!of_machine && fault->rank == environment_.rank))) return;
    if (is_stop(*fault) && !of_user) throw PeerError(stopped_text, reported_here, stopped_status);
    throw PeerError(fault->message(), reported_here, status_of(*fault));
  }

  void report(const std::string& message) noexcept { store_->report_fault(std::string(report_prefix) + message); }

  std::string broadcast_text(const std::string& text) {
    const std::string key = fmt::format("text/{}", texts_++);
    if (environment_.rank == 0) {
      store_->set(key, text);
      return text;
    }
    // Only rank 1 logs a warning.
    return wait_for(key, environment_.rank == 1, "rank 0: its text for the other ranks has not arrived");
  }

  std::vector<std::string> gather_text(const std::string& text, const std::string& what) {
    const int number = gathered_++;
    const auto key = [&](int rank) { return fmt::format("gathered/{}/{}", number, rank); };
    if (environment_.rank != 0) {
      store_->set(key(environment_.rank), text);
      return {};
    }
    std::vector<std::string> all{text};
    for (int rank = 1; rank < environment_.world_size; ++rank)
      all.push_back(wait_for(key(rank), true, fmt::format("rank {}: {} has not arrived", rank, what)));
    return all;
  }

 private:
  void open(const Options& options, const ConnectStop& stop) {
    std::string secret = environment_.secret;
    if (secret.empty()) {
      secret = "no secret";
      if (environment_.rank == 0)
        log_warn(
            "the launcher provides no job id: any client that reaches port {} of {} can join this job; set "
            "FURLONG_JOB_SECRET to the same value on all ranks",
            environment_.master_port, environment_.master_address);
    }
    const bool one_host = environment_.local_world_size == environment_.world_size;
    if (environment_.rank == 0) {
      StoreServerOptions server;
      server.address = environment_.master_address;
      server.port = environment_.master_port;
      server.secret = secret;
      server.world_size = environment_.world_size;
      server.host = environment_.host;
      server.one_host = one_host;
      server.times = times_;
      server_ = std::make_unique<StoreServer>(server);
    }
    StoreClientOptions client;
    client.address = environment_.master_address;
    client.port = environment_.master_port;
    client.secret = secret;
    client.rank = environment_.rank;
    client.world_size = environment_.world_size;
    client.host = environment_.host;
    client.times = times_;
    client.connect_timeout = options.connect_timeout;
    client.give_up = [this, stop, begin = Clock::now(), next = notice_after_]() mutable {
      if (Clock::now() - begin >= next) {
        warn_of_missing_store(seconds_since(begin));
        next += notice_every_;
      }
      return stop.is_due();
    };
    client.on_fault = [this](const Fault& fault) { on_fault(fault); };
    store_ = std::make_unique<StoreClient>(client);
    const StopReporter reporter(*store_, stop, std::string(stop_reason));
    gloo_.rank = environment_.rank;
    gloo_.size = environment_.world_size;
    gloo_.host = environment_.host;
    gloo_.address = own_address_toward(environment_.master_address, one_host);
    gloo_.connect_timeout = options.connect_timeout;
    gloo_.notice_after = notice_after_;
    gloo_.notice_every = notice_every_;
    gloo_.fault_patience = times_.grace + 2 * times_.heartbeat_interval;
    communicator_ = make_gloo_communicator(*store_, gloo_);
  }

  /// Warns that rank 0, which runs the store, has not started. Ranks without a store cannot agree on one that warns:
  /// rank 1 does, and one of each further host.
  void warn_of_missing_store(double waited) const {
    if (environment_.rank != 1 && environment_.local_rank != 0) return;
    log_warn(
        "rank 0 has not arrived for {:.0f} s: no job store at MASTER_ADDR {}, MASTER_PORT {}; waiting up to {:.0f} s; "
        "check that rank 0 has started, and its log",
        waited, environment_.master_address, environment_.master_port,
        std::chrono::duration<double>(connect_timeout_).count());
  }

  /// Waits for a value that another rank writes to the store, as long as that rank is alive. If `warns` is set, logs
  /// `missing` at intervals.
  std::string wait_for(const std::string& key, bool warns, const std::string& missing) {
    const auto begin = Clock::now();
    for (milliseconds patience = notice_after_;; patience = notice_every_) {
      try {
        const std::vector<char> found = store_->get(key, patience);
        return {found.begin(), found.end()};
      } catch (const MachineError&) {
        if (store_->fault()) throw;
      }
      if (warns) log_warn("{} for {:.0f} s; waiting as long as that rank is alive", missing, seconds_since(begin));
    }
  }

  /// Waits until rank 0 has stopped listening, at most for the time that it has to end.
  void wait_for_end_of_store() const {
    std::string problem;
    const std::vector<SocketAddress> addresses =
        resolve(environment_.master_address, environment_.master_port, problem);
    int error = 0;
    for (const TimePoint end = std::chrono::steady_clock::now() + patience_; std::chrono::steady_clock::now() < end;) {
      const bool listens = std::any_of(addresses.begin(), addresses.end(), [&](const SocketAddress& address) {
        return static_cast<bool>(connect_to(address, end, patience_, error));
      });
      if (!listens) return;
      std::this_thread::sleep_for(milliseconds(50));
    }
  }

  NcclOptions nccl_options() const {
    NcclOptions nccl;
    nccl.rank = gloo_.rank;
    nccl.size = gloo_.size;
    nccl.device = device_;
    nccl.connect_timeout = gloo_.connect_timeout;
    nccl.fault_patience = gloo_.fault_patience;
    nccl.notice_after = notice_after_;
    nccl.notice_every = notice_every_;
    return nccl;
  }

  /// Decides whether this process prints the fault. Rank 0 prints all faults except its own loss. If rank 0 is lost, so
  /// is its store, through which the ranks could agree: then the first rank of each host prints the fault.
  bool is_reported_here(const Fault& fault) {
    const std::lock_guard lock(report_mutex_);
    if (!is_reported_here_) {
      const bool by_rank_zero = fault.rank != 0 || is_report(fault);
      is_reported_here_ = by_rank_zero ? environment_.rank == 0 : environment_.rank != 0 && claim(fault);
    }
    return *is_reported_here_;
  }

  /// Returns true in exactly one process of this job and host. The first process binds an abstract Unix socket, whose
  /// name is unique. The name is released when the process ends, so it stays until the others have learned of the
  /// fault.
  bool claim(const Fault& fault) {
    const std::string name =  // truncated below if too long
        fmt::format("furlong fault {} {} {}", environment_.master_port, environment_.host, environment_.master_address);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);  // a leading zero byte makes the socket abstract
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
    claim_ = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (claim_ && ::bind(claim_.descriptor(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 &&
        errno == EADDRINUSE)
      return false;
    const int others = environment_.local_world_size - 1 - (fault.host == environment_.host);
    // The heartbeat interval, which delays detection, is 2/3 of patience_.
    if (others > 0) stay_until_ = std::chrono::steady_clock::now() + patience_ * 5 / 6;
    return true;
  }

  void on_fault(const Fault& fault) {
    is_reported_here(fault);
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    changed_.notify_all();
  }

  /// Ends the process after a fault if its main thread does not (long computation, hanging file system). Prints the
  /// error here, because the main thread would print it only after this object is destroyed.
  void watch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ || own_error_ || fault_; });
    if (changed_.wait_for(lock, patience_, [&] { return done_; })) return;
    if (!fault_) end_with_last_line(*own_error_, own_status_);
    const std::string message = is_stop(*fault_) ? stopped_text : fault_->message();
    end_with_last_line(is_reported_here(*fault_) ? message : "", status_of(*fault_));
  }

  void stop_watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }
    if (watchdog_.joinable()) watchdog_.join();
  }

  const LaunchEnvironment environment_;
  const milliseconds connect_timeout_, notice_after_, notice_every_, patience_;
  const StoreTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Fault> fault_;
  std::optional<std::string> own_error_;
  int own_status_ = 1;
  bool done_ = false, left_ = false;
  std::mutex report_mutex_;
  std::optional<bool> is_reported_here_;  ///< set once a fault is known
  Socket claim_;
  TimePoint stay_until_{};
  int texts_ = 0, rows_ = 0, gathered_ = 0;
  GlooOptions gloo_;
  std::thread watchdog_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> store_;
  std::unique_ptr<Communicator> communicator_;
  Device device_;
  std::unique_ptr<Communicator> device_communicator_;
};

ProcessGroup::ProcessGroup(const LaunchEnvironment& environment, const Options& options) : environment_(environment) {
  if (environment.world_size == 1) {
    alone_ = make_single_process();
  } else {
    joined_ = std::make_unique<Joined>(environment, options);
    joined_->connect(options);
  }
}

ProcessGroup::ProcessGroup() : ProcessGroup(LaunchEnvironment{}, Options{}) {}

ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const { return environment_.rank; }
int ProcessGroup::size() const { return environment_.world_size; }
const LaunchEnvironment& ProcessGroup::environment() const { return environment_; }
Communicator& ProcessGroup::communicator() const { return joined_ ? joined_->communicator() : *alone_; }

Communicator& ProcessGroup::device_communicator(const Device& device) const {
  return joined_ ? joined_->device_communicator(device) : *alone_;
}

void ProcessGroup::reduce(std::span<double> numbers, Reduction reduction) const {
  if (!joined_ || numbers.empty()) return;
  const Tensor values =
      Tensor::from(std::vector<double>(numbers.begin(), numbers.end()), {static_cast<std::int64_t>(numbers.size())});
  joined_->communicator().all_reduce(Stream{}, values, reduction).wait();
  std::memcpy(numbers.data(), values.address(), numbers.size_bytes());
}

void ProcessGroup::sum(std::span<double> numbers) const { reduce(numbers, Reduction::sum); }
void ProcessGroup::minimum(std::span<double> numbers) const { reduce(numbers, Reduction::minimum); }
std::string ProcessGroup::broadcast_text(const std::string& text) const {
  return joined_ ? joined_->broadcast_text(text) : text;
}
std::vector<std::string> ProcessGroup::gather_text(const std::string& text, const std::string& what) const {
  return joined_ ? joined_->gather_text(text, what) : std::vector<std::string>{text};
}
std::unique_ptr<Communicator> ProcessGroup::split_consecutive(int size) const {
  require(size > 0 && this->size() % size == 0,
          "split_consecutive: groups of {} ranks do not divide a world size of {}", size, this->size());
  return joined_ ? joined_->split_consecutive(size) : make_single_process();
}
void ProcessGroup::barrier() const { communicator().barrier(Stream{}).wait(); }

int ProcessGroup::default_threads() const {
  if (!joined_) return 0;
  const CpuInformation cpu = read_machine().cpu;
  const int usable = cpu.usable_cores();
  const Cores own = Cores::own(environment_.host);
  const Tensor mine = Tensor::empty({static_cast<std::int64_t>(sizeof own)}, DType::uint8);
  std::memcpy(mine.address(), &own, sizeof own);
  const Tensor all = Tensor::empty({size() * static_cast<std::int64_t>(sizeof own)}, DType::uint8);
  communicator().all_gather(Stream{}, mine, all).wait();
  std::vector<Cores> processes(static_cast<std::size_t>(size()));
  std::memcpy(processes.data(), all.address(), processes.size() * sizeof own);
  const auto requested = requested_threads();
  const bool chosen_by_torchrun =
      environment_.is_elastic && requested && requested->variable == "OMP_NUM_THREADS" && requested->count == 1;
  if (requested && !chosen_by_torchrun) return 0;
  std::erase_if(processes, [&](const Cores& other) { return other.host != own.host; });
  double share = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!own.has(core)) continue;
    share += 1.0 / static_cast<double>(std::count_if(processes.begin(), processes.end(),
                                                     [&](const Cores& other) { return other.has(core); }));
  }
  if (own.count() == 0)  // too many for the mask; unless they are bound, the ranks share them
    share = cpu.allowed_cores < cpu.online_cores ? usable : usable / static_cast<double>(processes.size());
  // A container's CPU quota is shared by all ranks of the host.
  if (usable < own.count())
    share = std::min(share, static_cast<double>(usable) / static_cast<double>(processes.size()));
  return std::max(1, static_cast<int>(share + 1e-9));
}

void ProcessGroup::leave() {
  if (!joined_) return;
  try {
    joined_->leave();
  } catch (const MachineError& error) {
    fail(error);
    throw;
  }
}

void ProcessGroup::report(const std::exception& error) const noexcept {
  if (joined_) joined_->report(error.what());
}

void ProcessGroup::fail(const std::exception& error) {
  if (dynamic_cast<const PeerError*>(&error)) return;  // from leave(), which has reported it
  if (joined_) joined_->fail(error);
}

}  // namespace furlong
