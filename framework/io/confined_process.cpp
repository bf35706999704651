#include "framework/io/confined_process.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/log.h"

namespace furlong {
namespace {

// Sanitizers map terabytes of memory and make their own system calls.
#ifdef FURLONG_SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

constexpr int channel_in_child = 3, file_in_child = 4;

std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Makes all other system calls fail with EPERM; calls of another architecture end the process. Returns false if the
/// kernel refuses the filter.
bool allow_few_calls() {
#ifdef __x86_64__
  constexpr std::array allowed{
      SYS_read,       SYS_pread64,    SYS_write,        SYS_close,           SYS_lseek,        SYS_fstat,
      SYS_newfstatat, SYS_brk,        SYS_munmap,       SYS_mremap,          SYS_madvise,      SYS_futex,
      SYS_exit,       SYS_exit_group, SYS_rt_sigreturn, SYS_restart_syscall, SYS_clock_gettime};
  constexpr std::uint32_t number = offsetof(seccomp_data, nr), architecture = offsetof(seccomp_data, arch),
                          protection = offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t);
  constexpr auto load = [](std::uint32_t place) { return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place); };
  constexpr auto give = [](std::uint32_t answer) { return sock_filter BPF_STMT(BPF_RET | BPF_K, answer); };
  // Skips `then` instructions if the loaded value equals `value`, else `otherwise`.
  constexpr auto equal = [](std::uint32_t value, std::uint8_t then, std::uint8_t otherwise) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise);
  };
  std::array<sock_filter, 2 * allowed.size() + 10> program{};
  std::size_t size = 0;
  program[size++] = load(architecture);
  program[size++] = equal(AUDIT_ARCH_X86_64, 1, 0);
  program[size++] = give(SECCOMP_RET_KILL_PROCESS);
  program[size++] = load(number);
  for (const long call : allowed) {
    program[size++] = equal(static_cast<std::uint32_t>(call), 0, 1);
    program[size++] = give(SECCOMP_RET_ALLOW);
  }
  // mmap and mprotect are allowed without PROT_EXEC.
  program[size++] = equal(SYS_mmap, 1, 0);
  program[size++] = equal(SYS_mprotect, 0, 3);
  program[size++] = load(protection);
  program[size++] = sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x4 /* PROT_EXEC */, 1, 0);
  program[size++] = give(SECCOMP_RET_ALLOW);
  program[size++] = give(SECCOMP_RET_ERRNO | EPERM);
  const sock_fprog filter{static_cast<unsigned short>(size), program.data()};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
#else
  return false;
#endif
}

/// Applies limits and the system-call filter. Returns whether the filter is active.
bool confine() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  setrlimit(RLIMIT_FSIZE, &none);
  return sanitized || allow_few_calls();
}

/// In the child: moves the two descriptors to fixed numbers and closes all others. The C library's heap-corruption
/// messages go to /dev/null.
void keep_descriptors(int channel, int file) {
  const int nowhere = open("/dev/null", O_RDWR);
  const int above = file_in_child + 1;  // not far: ulimit -n may be low
  const int high_channel = fcntl(channel, F_DUPFD, above), high_file = fcntl(file, F_DUPFD, above);
  for (int stream = 0; stream <= 2; ++stream) {
    if (nowhere < 0 || dup2(nowhere, stream) < 0) close(stream);
  }
  if (dup2(high_channel, channel_in_child) < 0 || dup2(high_file, file_in_child) < 0) _exit(1);
  if (syscall(SYS_close_range, file_in_child + 1, ~0u, 0) == 0) return;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  for (int descriptor = file_in_child + 1; descriptor < static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 16));
       ++descriptor)
    close(descriptor);
}

/// Removes the parent's signal handlers. Ignores what asks a program to end: the parent acts on it.
void reset_signals() {
  for (int number = 1; number < 32; ++number) std::signal(number, SIG_DFL);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

bool read_all(int channel, void* data, std::size_t bytes) noexcept {
  for (char* to = static_cast<char*>(data); bytes > 0;) {
    const ssize_t done = ::read(channel, to, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    to += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool write_all(int channel, const void* data, std::size_t bytes) noexcept {
  for (const char* from = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t done = ::write(channel, from, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

ConfinedProcess::ConfinedProcess(int file, std::string path, std::string library, const Body& body)
    : path_(std::move(path)), library_(std::move(library)), memory_(address_space()) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw MachineError("{}: cannot start the child process that reads it: {}", path_, std::strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  child_ = fork();
  if (child_ == 0) {
    keep_descriptors(ends[1], file);
    reset_signals();
    const char is_filtered = confine() ? 1 : 0;
    if (!write_all(channel_in_child, &is_filtered, 1)) _exit(1);
    try {
      body(channel_in_child, file_in_child);
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  const int failure = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  close(ends[1]);
  channel_ = ends[0];
  if (child_ < 0) {
    close(channel_);
    throw MachineError("{}: cannot start the child process that reads it: {}", path_, std::strerror(failure));
  }
  char is_filtered = 0;
  if (!read_all(channel_, &is_filtered, 1)) {
    close(channel_);
    kill(child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw MachineError("{}: the child process that reads it exited immediately", path_);
  }
  if (static bool warned = false; is_filtered == 0 && !std::exchange(warned, true))
    log_warn("{}: this system has no seccomp filters; {} reads the file in a process confined by resource limits only",
             path_, library_);
}

ConfinedProcess::~ConfinedProcess() {
  close(channel_);
  if (child_ <= 0) return;
  kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ConfinedProcess::allow(std::uint64_t seconds, std::uint64_t bytes) {
  const auto set = [this](auto resource, std::uint64_t limit) {
    rlimit now{};
    if (prlimit(child_, resource, nullptr, &now) != 0) return;
    now.rlim_cur = std::min<rlim_t>(limit, now.rlim_max);
    prlimit(child_, resource, &now, nullptr);
  };
  seconds_ += seconds;
  set(RLIMIT_CPU, seconds_);
  if (!sanitized) set(RLIMIT_AS, memory_ + bytes);
}

void ConfinedProcess::send(const void* data, std::size_t bytes) {
  for (const char* from = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t done = ::send(channel_, from, bytes, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw_child_failure();
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void ConfinedProcess::receive(void* data, std::size_t bytes) {
  if (!read_all(channel_, data, bytes)) throw_child_failure();
}

void ConfinedProcess::throw_child_failure() {
  // A child that has closed the channel exits shortly, or is killed.
  for (int tries = 0; child_ > 0 && waitpid(child_, &status_, WNOHANG) == 0; ++tries) {
    if (tries == 100) kill(child_, SIGABRT);
    if (tries == 200) kill(child_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  child_ = -1;
  const int signal = WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
  if (signal == SIGKILL) throw MachineError("{}: the process that reads it was killed; memory may be exhausted", path_);
  if (signal == SIGXCPU)
    throw UserError(
        "{}: {} needs more than {} s of CPU time to read it; the file is damaged or hostile; copy it again from a "
        "source that you trust",
        path_, library_, seconds_);
  throw UserError("{}: {} crashed while reading it; the file is damaged or hostile, or memory is exhausted", path_,
                  library_);
}

}  // namespace furlong
