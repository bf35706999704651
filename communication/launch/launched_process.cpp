#include "communication/launch/launched_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// The two ends of a pipe, closed on exec.
struct Pipe {
  Socket reading, writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw MachineError("cannot create a pipe: {}; raise ulimit -n if it is too low", error_text(errno));
  return {Socket(ends[0]), Socket(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// An affinity mask for the kernel.
struct CoreMask {
  explicit CoreMask(const std::vector<int>& cores) {
    if (cores.empty()) return;
    const int size = *std::max_element(cores.begin(), cores.end()) + 1;
    bytes = CPU_ALLOC_SIZE(size);
    mask.reset(CPU_ALLOC(size));
    CPU_ZERO_S(bytes, mask.get());
    for (const int core : cores) CPU_SET_S(core, bytes, mask.get());
  }
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask{nullptr, [](cpu_set_t* set) { CPU_FREE(set); }};
  std::size_t bytes = 0;
};

/// Everything that the new process needs, prepared before fork(): after it only async-signal-safe calls are allowed.
struct Prepared {
  pid_t launcher;
  const char* program;
  char* const* arguments;
  char* const* environment;
  const CoreMask& cores;
  int in, out, err, report;
  const LauncherSignals& signals;
};

[[noreturn]] void exec_program(const Prepared& start) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.launcher) _exit(1);  // the launcher ended before prctl()
  setpgid(0, 0);
  dup2(start.in, STDIN_FILENO);
  if (start.out >= 0) dup2(start.out, STDOUT_FILENO);
  if (start.err >= 0) dup2(start.err, STDERR_FILENO);
  // May fail if cores were taken away meanwhile; the process then runs on the remaining ones.
  if (start.cores.mask) sched_setaffinity(0, start.cores.bytes, start.cores.mask.get());
  start.signals.restore();
  execve(start.program, start.arguments, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(start.report, &error, sizeof error);
  _exit(127);
}

}  // namespace

LauncherSignals::LauncherSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGTSTP, SIGCONT}) sigaddset(&watched, signal);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&watched, SIGHUP);  // nohup ignores it
  waiting_ = Socket(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!waiting_) throw MachineError("cannot wait for signals: {}", error_text(errno));
  pthread_sigmask(SIG_BLOCK, &watched, &mask_before_);
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &pipe_before_);
  action.sa_handler = SIG_DFL;  // if the parent ignores SIGCHLD, no exit statuses would be available
  sigaction(SIGCHLD, &action, &child_before_);
}

int LauncherSignals::next() {
  signalfd_siginfo information{};
  return read(waiting_.descriptor(), &information, sizeof information) == sizeof information
             ? static_cast<int>(information.ssi_signo)
             : 0;
}

void LauncherSignals::suspend() const {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // stops here
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

void LauncherSignals::restore() const noexcept {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

StartedProcess start_process(const ProcessStart& start, const LauncherSignals& signals) {
  const std::vector<char*> arguments = pointers(start.arguments), environment = pointers(start.environment);
  const CoreMask cores(start.cores);
  const Socket empty(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!empty) throw MachineError("/dev/null: cannot be opened as the standard input of a rank: {}", error_text(errno));
  Pipe report = make_pipe(), out, err;
  if (start.captured) {
    out = make_pipe();
    err = make_pipe();
    fcntl(out.reading.descriptor(), F_SETFL, O_NONBLOCK);
    fcntl(err.reading.descriptor(), F_SETFL, O_NONBLOCK);
  }
  const Prepared prepared{
      getpid(),           start.program.c_str(),    arguments.data(),         environment.data(),          cores,
      empty.descriptor(), out.writing.descriptor(), err.writing.descriptor(), report.writing.descriptor(), signals};
  const pid_t process = fork();
  if (process < 0)
    throw MachineError("cannot start a process: {}; raise ulimit -u if it is too low", error_text(errno));
  if (process == 0) exec_program(prepared);
  report.writing.close();
  int error = 0;
  ssize_t count = 0;
  // The pipe closes without data once the new program starts.
  while ((count = read(report.reading.descriptor(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (count == sizeof error) {
    waitpid(process, nullptr, 0);
    throw MachineError("{}: cannot be started: {}", start.program, error_text(error));
  }
  return {process, std::move(out.reading), std::move(err.reading)};
}

}  // namespace furlong
