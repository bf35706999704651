#include "communication/launch/launcher.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "communication/launch/launch_settings.h"
#include "communication/launch/launched_process.h"
#include "communication/launch/line_relay.h"
#include "framework/core/error.h"
#include "framework/core/log.h"

namespace furlong {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Moment = steady_clock::time_point;

constexpr int kStoppedBySignal = 3;  // the exit status of a process that has saved and can go on
constexpr int kInterrupted = 128 + SIGINT;
// How long output is awaited from whatever still holds a pipe when all processes have ended.
constexpr std::chrono::seconds kLastWords{1};

Moment after(double seconds) {
  return steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(Seconds(seconds));
}

/// One of the streams that are relayed.
struct RelayedStream {
  Socket pipe;
  LinePrefixer lines;
};

struct Rank {
  int number = 0;
  pid_t process = -1;
  std::vector<RelayedStream> streams;
  bool living = true;
  bool stopped = false;  ///< by a signal, at this moment
  bool killed = false;   ///< by us
  bool stopped_when_killed = false;
  int status = 0;  ///< exit status, 0 as long as it lives
  int signal = 0;  ///< that ended it; status is then 128 + signal
  bool dumped = false;

  bool failed() const { return !living && status != 0 && status != kStoppedBySignal; }
};

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

/// "rank 3", "ranks 0, 2 and 5"; of many the first few.
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() > kMost)
    return fmt::format("ranks {} and {} others", fmt::join(ranks.begin(), ranks.begin() + kMost, ", "),
                       ranks.size() - kMost);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

/// A closed descriptor below 3 would be the next pipe's, and then be overwritten in the processes.
void open_standard_streams() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDWR) != descriptor)
      throw MachineError("/dev/null: cannot be opened");
  }
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {}
  ~Launch() {  // on the way of an exception
    for (const Rank& rank : ranks_) {
      if (!rank.living) continue;
      kill(-rank.process, SIGKILL);
      waitpid(rank.process, nullptr, 0);
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run(const LaunchSettings& settings) {
    start(settings);
    while (count_living() > 0) {
      wait_for_events();
      handle_signals();
      observe_ends();
      keep_deadline();
      relay();
    }
    finish_output();
    return conclude(settings.host);
  }

 private:
  void start(const LaunchSettings& settings) {
    const std::vector<std::string> inherited = inherited_environment();
    ranks_.reserve(static_cast<std::size_t>(settings.processes));
    ProcessStart start;
    start.program = options_.program;
    start.arguments = {options_.name};
    start.arguments.insert(start.arguments.end(), options_.arguments.begin(), options_.arguments.end());
    for (int number = 0; number < settings.processes; ++number) {
      start.environment = settings.environment_of(number, inherited);
      if (!settings.core_blocks.empty()) start.cores = settings.core_blocks[static_cast<std::size_t>(number)];
      start.captured = number > 0;
      StartedProcess started = start_process(start, signals_);
      Rank& rank = ranks_.emplace_back();
      rank.number = number;
      rank.process = started.process;
      for (Socket* pipe : {&started.out, &started.err}) {
        if (*pipe) rank.streams.push_back({std::move(*pipe), LinePrefixer(fmt::format("[rank {}] ", number))});
      }
    }
  }

  std::size_t count_living() const {
    return static_cast<std::size_t>(
        std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.living; }));
  }

  template <class Action>
  void for_each_living(const Action& action) {
    for (Rank& rank : ranks_) {
      if (rank.living) action(rank);
    }
  }

  void wait_for_events() {
    std::vector<pollfd> watched = {{signals_.descriptor(), POLLIN, 0}};
    if (!output_.empty()) watched.push_back({output_.descriptor(), POLLOUT, 0});
    if (!output_.full()) {
      for (const Rank& rank : ranks_) {
        for (const RelayedStream& stream : rank.streams) watched.push_back({stream.pipe.descriptor(), POLLIN, 0});
      }
    }
    poll(watched.data(), watched.size(), deadline_ ? poll_milliseconds(*deadline_) : -1);
  }

  void handle_signals() {
    while (const int signal = signals_.next()) {
      switch (signal) {
        case SIGINT:
          if (interrupted_) {
            interrupted_twice_ = true;
            kill_living();
            break;
          }
          interrupted_ = true;
          [[fallthrough]];
        case SIGTERM:
        case SIGUSR1:
          passed_on_.push_back(signal);
          for_each_living([&](const Rank& rank) { kill(rank.process, signal); });
          break;
        case SIGTSTP:
          for_each_living([](const Rank& rank) { kill(-rank.process, SIGSTOP); });
          signals_.suspend();
          for_each_living([](const Rank& rank) { kill(-rank.process, SIGCONT); });
          break;
        case SIGCONT:
          deadline_.reset();  // the time that passed meanwhile was nobody's
          break;
        default:  // SIGCHLD has woken us
          break;
      }
    }
  }

  /// What has become of the processes since the last look. Of those that have ended since, signals come first: a
  /// process that reports a status may do so because it has lost the other.
  void observe_ends() {
    std::vector<Rank*> failed;
    for_each_living([&](Rank& rank) {
      siginfo_t change{};
      while (waitid(P_PID, static_cast<id_t>(rank.process), &change, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
             change.si_pid != 0) {
        rank.stopped = change.si_code == CLD_STOPPED;
        change = {};
      }
      if (waitid(P_PID, static_cast<id_t>(rank.process), &change, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          change.si_pid == 0)
        return;
      kill(-rank.process, SIGKILL);  // what it has left behind, while its id is still taken
      waitid(P_PID, static_cast<id_t>(rank.process), &change, WEXITED);
      rank.living = false;
      if (change.si_code == CLD_EXITED) {
        rank.status = change.si_status;
      } else {
        rank.signal = change.si_status;
        rank.status = 128 + rank.signal;
        rank.dumped = change.si_code == CLD_DUMPED;
      }
      if (rank.failed() && !rank.killed) failed.push_back(&rank);
    });
    if (first_failed_ || failed.empty()) return;
    first_failed_ = *std::min_element(failed.begin(), failed.end(),
                                      [](const Rank* a, const Rank* b) { return (a->signal != 0) > (b->signal != 0); });
  }

  /// The time that is left to the others: it runs from a failure on, and where only stopped processes are left of those
  /// that began.
  void keep_deadline() {
    bool only_stopped = count_living() < ranks_.size();
    for_each_living([&](const Rank& rank) { only_stopped = only_stopped && rank.stopped; });
    if (!first_failed_ && !only_stopped) {
      deadline_.reset();
      return;
    }
    if (!deadline_) deadline_ = after(options_.timeout);
    if (steady_clock::now() < *deadline_) return;
    kill_living();
    deadline_ = after(60);  // they are about to end; nothing else is to happen before
  }

  void kill_living() {
    for_each_living([](Rank& rank) {
      if (!rank.killed) rank.stopped_when_killed = rank.stopped;
      rank.killed = true;
      kill(-rank.process, SIGKILL);
    });
  }

  /// Takes what has arrived; true when there was something.
  bool relay() {
    bool moved = false;
    std::array<char, 65536> buffer;
    for (Rank& rank : ranks_) {
      for (RelayedStream& stream : rank.streams) {
        if (output_.full()) break;
        const ssize_t count = read(stream.pipe.descriptor(), buffer.data(), buffer.size());
        if (count > 0) {
          stream.lines.add({buffer.data(), static_cast<std::size_t>(count)}, output_.lines());
        } else if (count == 0) {
          stream.lines.finish(output_.lines());
          stream.pipe.close();
        }
        moved = moved || count >= 0;
      }
      std::erase_if(rank.streams, [](const RelayedStream& stream) { return !stream.pipe; });
    }
    output_.write_some();
    return moved;
  }

  /// All have ended; what they wrote may still be on its way. Whoever does not want to wait for a reader that pauses
  /// sends a signal.
  void finish_output() {
    gave_up_ = interrupted_twice_;
    if (gave_up_) return;
    deadline_ = after(static_cast<double>(kLastWords.count()));
    const auto open = [&] {
      return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.streams.empty(); });
    };
    while (!gave_up_ && (open() || !output_.empty())) {
      if (relay() || output_.full()) deadline_ = after(static_cast<double>(kLastWords.count()));
      if (open() && !output_.full() && steady_clock::now() >= *deadline_) {
        for (Rank& rank : ranks_) {
          for (RelayedStream& stream : rank.streams) stream.lines.finish(output_.lines());
          rank.streams.clear();
        }
      }
      if (!open()) deadline_.reset();
      if (!open() && output_.empty()) return;
      wait_for_events();
      while (const int signal = signals_.next()) {
        gave_up_ = gave_up_ || signal == SIGINT || signal == SIGTERM;
      }
    }
  }

  /// Who is to blame: a stopped process that the others missed, or the first that failed.
  const Rank* at_fault() const {
    const auto stopped = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.stopped_when_killed && rank.signal == SIGKILL;
    });
    if (stopped != ranks_.end() && (!first_failed_ || first_failed_->signal == 0)) return &*stopped;
    return first_failed_;
  }

  int conclude(const std::string& host) const {
    const bool tell = !gave_up_ || output_.ready();  // a last word must not wait for a reader that nobody waits for
    if (interrupted_twice_) {
      if (tell) log_error("killed by a second SIGINT; what was not saved is lost");
      return kInterrupted;
    }
    const Rank* fault = at_fault();
    if (!fault) {
      const bool stopped =
          std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status == kStoppedBySignal; });
      return stopped ? kStoppedBySignal : 0;
    }
    if (tell)
      log_error("rank {} (host {}, process {}) {}{}", fault->number, host, fault->process, end_text(*fault),
                others_text(*fault));
    return fault->status;
  }

  std::string end_text(const Rank& rank) const {
    if (rank.stopped_when_killed)
      return fmt::format("was stopped and did not go on within {:g} s: killed", options_.timeout);
    if (rank.signal == 0) return fmt::format("ended with status {}", rank.status);
    const std::string name = signal_name(rank.signal);
    const char* more = "";
    if (std::find(passed_on_.begin(), passed_on_.end(), rank.signal) != passed_on_.end()) {
      more = ", which was passed on to it before it was ready to save";
    } else if (rank.signal == SIGKILL) {
      more = "; if nobody did, memory ran out: see dmesg";
    } else if (rank.dumped) {
      more = " (core dumped)";
    }
    return fmt::format("was ended by {}{}", name, more);
  }

  std::string others_text(const Rank& fault) const {
    std::vector<int> killed;
    for (const Rank& rank : ranks_) {
      if (rank.killed && &rank != &fault && rank.signal == SIGKILL) killed.push_back(rank.number);
    }
    if (killed.empty()) return "";
    return fmt::format("; {} did not end within {:g} s and {} killed", ranks_text(killed), options_.timeout,
                       killed.size() == 1 ? "was" : "were");
  }

  const LaunchOptions& options_;
  LauncherSignals signals_;
  LineQueue output_{STDERR_FILENO};
  std::vector<Rank> ranks_;
  const Rank* first_failed_ = nullptr;
  std::optional<Moment> deadline_;
  std::vector<int> passed_on_;
  bool interrupted_ = false, interrupted_twice_ = false;
  bool gave_up_ = false;  ///< on a reader that does not take the output
};

}  // namespace

int launch(const LaunchOptions& options, const EnvironmentFunction& environment) {
  LaunchSettings settings = launch_settings(options, environment);
  open_standard_streams();
  const Socket reserved = reserve_port(options.master_port);
  settings.master_port = own_address(reserved).port();
  log_info("{}", settings.text());
  if (settings.processes * static_cast<std::int64_t>(settings.threads) > settings.cores) {
    log_warn("{} process{} with {} thread{} each share {} core{} and will wait for one another; expect more from {}",
             settings.processes, settings.processes == 1 ? "" : "es", settings.threads,
             settings.threads == 1 ? "" : "s", settings.cores, settings.cores == 1 ? "" : "s",
             settings.processes > settings.cores ? "fewer processes" : "a smaller OMP_NUM_THREADS");
  }
  return Launch(options).run(settings);
}

}  // namespace furlong
