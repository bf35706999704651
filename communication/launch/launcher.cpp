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
#include <functional>
#include <optional>

#include "communication/launch/launch_settings.h"
#include "communication/launch/launched_process.h"
#include "communication/launch/line_relay.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/standard_streams.h"

namespace furlong {
namespace {

using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Moment = steady_clock::time_point;

constexpr int kStoppedBySignal = 3;  // exit status of a rank that has saved a checkpoint and can be resumed
constexpr int kUserError = 2;        // exit status of a rank that has reported a user error
constexpr int kInterrupted = 128 + SIGINT;
// Time to wait for output from processes that still hold a pipe after all ranks have ended.
constexpr std::chrono::seconds kLastWords{1};
// Time to wait after that for a reader that takes nothing. Longer than for a message (write_message()): the reader of a
// job that has ended delays nothing.
constexpr std::chrono::seconds kReaderPatience{3};

Moment after(double seconds) {
  return steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(Seconds(seconds));
}

/// A stream of a rank that is relayed.
struct RelayedStream {
  Socket pipe;
  LinePrefixer lines;
};

struct Rank {
  int number = 0;
  pid_t process = -1;
  std::vector<RelayedStream> streams;
  bool living = true;
  bool stopped = false;  ///< currently stopped by a signal
  bool killed = false;   ///< by the launcher
  bool stopped_when_killed = false;
  int status = 0;  ///< exit status; 0 while running
  int signal = 0;  ///< signal that terminated the rank; status is then 128 + signal
  bool dumped = false;

  bool failed() const { return !living && status != 0 && status != kStoppedBySignal; }
  bool ended_after_stop() const { return !living && status == kStoppedBySignal; }
};

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

/// Returns "rank 3" or "ranks 0, 2 and 5"; names at most 8 ranks.
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() > kMost)
    return fmt::format("ranks {} and {} others", fmt::join(ranks.begin(), ranks.begin() + kMost, ", "),
                       ranks.size() - kMost);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

/// Opens closed standard streams. Otherwise a pipe could get a descriptor below 3, which the ranks overwrite.
void open_standard_streams() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDWR) != descriptor)
      throw MachineError("/dev/null: cannot be opened to replace the closed standard stream {}: {}", descriptor,
                         error_text(errno));
  }
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {}
  ~Launch() {  // ranks still run only after an exception
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
    collect_exits();  // start() has taken the signals of ranks that ended meanwhile
    while (count_living() > 0) {
      enforce_deadline();  // before the first wait, too: no signal may follow what has happened so far
      wait_for_events();
      handle_signals();
      collect_exits();
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
      handle_signals();
      if (!forwarded_.empty()) return;  // the ranks cannot find each other anyway
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
    if (!output_.full()) {
      for (const Rank& rank : ranks_) {
        for (const RelayedStream& stream : rank.streams) watched.push_back({stream.pipe.descriptor(), POLLIN, 0});
      }
    }
    int milliseconds = deadline_ ? poll_milliseconds(*deadline_) : -1;
    // Not POLLOUT: a terminal with room for one byte is ready, but refuses the end of a line.
    constexpr int next_try = 10;
    if (!output_.empty()) milliseconds = milliseconds < 0 ? next_try : std::min(milliseconds, next_try);
    poll(watched.data(), watched.size(), milliseconds);
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
        case SIGHUP:
          forwarded_.push_back(signal);
          for_each_living([&](const Rank& rank) { kill(rank.process, signal); });
          break;
        case SIGTSTP:
          for_each_living([](const Rank& rank) { kill(-rank.process, SIGSTOP); });
          signals_.suspend();
          for_each_living([](const Rank& rank) { kill(-rank.process, SIGCONT); });
          break;
        case SIGCONT:
          deadline_.reset();  // the time in suspension does not count
          break;
        default:  // SIGCHLD only wakes the loop
          break;
      }
    }
  }

  /// Updates the states of the ranks. Among ranks that ended since the last call, one that a signal terminated counts
  /// as the first failure: a rank that exits with a status may do so because it lost the other.
  void collect_exits() {
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
      kill(-rank.process, SIGKILL);  // its remaining children, while the group id is still reserved
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

  /// Starts the time limit after a failure, or when only stopped ranks remain, and kills the ranks when it is reached.
  /// The time limit is longer after a rank's exit with status 3: another may still be starting, or saving. A failure
  /// after that starts its own time limit.
  void enforce_deadline() {
    bool only_stopped = count_living() < ranks_.size();
    for_each_living([&](const Rank& rank) { only_stopped = only_stopped && rank.stopped; });
    const bool has_fault = first_failed_ || only_stopped;
    if (!has_fault && std::none_of(ranks_.begin(), ranks_.end(), std::mem_fn(&Rank::ended_after_stop))) {
      deadline_.reset();
      return;
    }
    const double limit = has_fault ? options_.timeout : std::max(options_.stop_timeout, options_.timeout);
    const bool kills = std::any_of(ranks_.begin(), ranks_.end(), std::mem_fn(&Rank::killed));
    if (!deadline_ || (has_fault != limits_fault_ && !kills)) deadline_ = after(limit);
    if (!kills) {
      limit_ = limit;
      limits_fault_ = has_fault;
    }
    if (steady_clock::now() < *deadline_) return;
    kill_living();
    deadline_ = after(60);  // only waits for the killed ranks to end
  }

  void kill_living() {
    for_each_living([](Rank& rank) {
      if (!rank.killed) rank.stopped_when_killed = rank.stopped;
      rank.killed = true;
      kill(-rank.process, SIGKILL);
    });
  }

  /// Relays the output that has arrived. Returns true if there was any.
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
    if (output_.write_some() || output_.empty()) last_taken_ = steady_clock::now();
    return moved;
  }

  /// Relays the remaining output after all ranks have ended, and discards what the reader does not take.
  void finish_output() {
    gave_up_ = interrupted_twice_;
    if (!gave_up_) relay_last_words();
    end_streams();
    output_.discard();
  }

  void end_streams() {
    for (Rank& rank : ranks_) {
      for (RelayedStream& stream : rank.streams) stream.lines.finish(output_.lines());
      rank.streams.clear();
    }
  }

  /// A signal or kReaderPatience ends the wait for a paused reader.
  void relay_last_words() {
    last_taken_ = steady_clock::now();
    deadline_ = after(static_cast<double>(kLastWords.count()));
    const auto open = [&] {
      return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.streams.empty(); });
    };
    while (!gave_up_ && (open() || !output_.empty())) {
      if (relay() || output_.full()) deadline_ = after(static_cast<double>(kLastWords.count()));
      if (open() && !output_.full() && steady_clock::now() >= *deadline_) end_streams();
      if (!open()) deadline_.reset();
      if (!open() && output_.empty()) return;
      if (!output_.empty() && steady_clock::now() >= last_taken_ + kReaderPatience) gave_up_ = true;
      wait_for_events();
      while (const int signal = signals_.next()) {
        gave_up_ = gave_up_ || signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
      }
    }
  }

  /// Returns the rank to report: a stopped rank that the others lost, the first that failed, or one that did not end
  /// after another had ended with status 3.
  const Rank* rank_to_report() const {
    const auto stopped = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.stopped_when_killed && rank.signal == SIGKILL;
    });
    if (stopped != ranks_.end() && (!first_failed_ || first_failed_->signal == 0)) return &*stopped;
    if (first_failed_) return first_failed_;
    const auto killed = std::find_if(ranks_.begin(), ranks_.end(),
                                     [](const Rank& rank) { return rank.killed && rank.signal == SIGKILL; });
    return killed == ranks_.end() ? nullptr : &*killed;
  }

  int conclude(const std::string& host) const {
    const bool report = !gave_up_ || output_.ready();  // never block on a paused reader after giving up
    if (interrupted_twice_) {
      if (report) log_error("killed by a second SIGINT; unsaved work is lost");
      return kInterrupted;
    }
    const Rank* fault = rank_to_report();
    if (!fault) {
      const bool stopped =
          std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status == kStoppedBySignal; });
      return stopped ? kStoppedBySignal : 0;
    }
    const std::string others = others_text(*fault);
    const bool explained =
        fault->status == kUserError && fault->signal == 0 && !fault->stopped_when_killed && others.empty();
    if (report && !explained)
      log_error("rank {} (host {}, process {}) {}{}", fault->number, host, fault->process, end_text(*fault), others);
    return fault->status;
  }

  std::string end_text(const Rank& rank) const {
    if (rank.stopped_when_killed) return fmt::format("was stopped and did not continue within {:g} s: killed", limit_);
    if (rank.killed)
      return fmt::format(
          "did not end within {:g} s after another rank had ended with status {} (stopped by a signal): killed", limit_,
          kStoppedBySignal);
    if (rank.signal == 0) return fmt::format("ended with status {}", rank.status);
    const std::string name = signal_name(rank.signal);
    const char* more = "";
    if (std::find(forwarded_.begin(), forwarded_.end(), rank.signal) != forwarded_.end()) {
      more = ", which was forwarded before the rank was ready to save";
    } else if (rank.signal == SIGKILL) {
      more = "; if nobody sent it, the host ran out of memory: see dmesg";
    } else if (rank.dumped) {
      more = " (core dumped)";
    }
    return fmt::format("was terminated by {}{}", name, more);
  }

  std::string others_text(const Rank& fault) const {
    std::vector<int> killed;
    for (const Rank& rank : ranks_) {
      if (rank.killed && &rank != &fault && rank.signal == SIGKILL) killed.push_back(rank.number);
    }
    if (killed.empty()) return "";
    return fmt::format("; {} did not end within {:g} s and {} killed", ranks_text(killed), limit_,
                       killed.size() == 1 ? "was" : "were");
  }

  const LaunchOptions& options_;
  LauncherSignals signals_;
  LineQueue output_{STDERR_FILENO};
  std::vector<Rank> ranks_;
  const Rank* first_failed_ = nullptr;
  std::optional<Moment> deadline_;
  double limit_ = 0;           ///< seconds that deadline_ allows
  bool limits_fault_ = false;  ///< deadline_ follows a failure, or only stopped ranks; false: an exit with status 3
  std::vector<int> forwarded_;
  bool interrupted_ = false, interrupted_twice_ = false;
  Moment last_taken_;     ///< last time when the reader took lines or none waited
  bool gave_up_ = false;  ///< true: a paused reader is no longer waited for
};

int run_job(const LaunchOptions& options, const LaunchSettings& settings) {
  Launch job(options);         // remembers how this process handles SIGPIPE, for the ranks
  continue_without_readers();  // a closed pipe of the log must not end the job
  log_info("{}", settings.text());
  if (settings.processes * static_cast<std::int64_t>(settings.threads) > settings.cores) {
    log_warn("{} rank{} with {} thread{} each share {} core{} and slow each other down; use {}", settings.processes,
             settings.processes == 1 ? "" : "s", settings.threads, settings.threads == 1 ? "" : "s", settings.cores,
             settings.cores == 1 ? "" : "s",
             settings.processes > settings.cores ? "a smaller --processes" : "a smaller OMP_NUM_THREADS");
  }
  return job.run(settings);
}

}  // namespace

int launch(const LaunchOptions& options, const EnvironmentFunction& environment) {
  LaunchSettings settings = launch_settings(options, environment);
  open_standard_streams();
  const Socket reserved = reserve_port(options.master_port);
  settings.master_port = own_address(reserved).port();
  const int status = run_job(options, settings);
  continue_without_readers();  // again, because the end of the job has restored SIGPIPE
  return status;
}

}  // namespace furlong
