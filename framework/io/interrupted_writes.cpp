#include "framework/io/interrupted_writes.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <string_view>

#include "framework/core/standard_streams.h"

namespace furlong {
namespace {

// A signal handler may read this memory at any time: it is fixed, and a path is complete before its slot is marked
// ready.
struct Slot {
  enum State : int { free, filling, ready };
  std::atomic<int> state = free;
  bool is_directory;
  char path[PATH_MAX];
};
std::array<Slot, 64> slots;

struct Ending {
  int signal;
  std::string_view name;
};
constexpr std::array<Ending, DelayedSignals::n_signals> ending{
    {{SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}}};
std::array<std::atomic<bool>, ending.size()> arrived;  // while they are delayed
std::atomic<bool> is_complete;                         // the output

void delay(int signal) {
  for (std::size_t i = 0; i < ending.size(); ++i) {
    if (ending[i].signal == signal) arrived[i] = true;
  }
}

// The functions below call only async-signal-safe ones (signal-safety(7)).

/// Removes the registered files, and directories when they are empty.
void remove_partials() {
  for (bool removed = true; removed;) {
    removed = false;
    for (Slot& slot : slots) {
      if (slot.state.load(std::memory_order_acquire) != Slot::ready) continue;
      if ((slot.is_directory ? ::rmdir(slot.path) : ::unlink(slot.path)) == 0) removed = true;
    }
  }
}

void remove_and_end(int signal) {
  // Another signal, to another thread, waits for the end of the program.
  static std::atomic_flag begun;
  while (begun.test_and_set()) ::pause();
  remove_partials();
  constexpr std::chrono::milliseconds patience{200};  // a paused reader does not keep the program running
  const bool complete = is_complete;
  std::string_view name;
  for (const Ending& one : ending) {
    if (one.signal == signal) name = one.name;
  }
  std::array<char, 80> line;
  std::size_t size = 0;
  const std::string_view start = complete ? "warning: stopped by SIG" : "error: stopped by SIG";
  const std::string_view end = complete ? "; the output is complete\n" : "; no partial file is left\n";
  for (const std::string_view part : {start, name, end}) {
    std::memcpy(line.data() + size, part.data(), part.size());
    size += part.size();
  }
  write_patiently(STDERR_FILENO, {line.data(), size}, patience);
  remove_partials();  // of other threads, which continue meanwhile
  ::_exit(complete ? 0 : 3);
}

/// While a file is written, the failed write is an error of its writer, which may ignore it: a lost line of progress.
/// Otherwise the signal ends the program, as without a handler.
void lose_reader(int signal) {
  if (is_complete) return;  // and the program reports what is lost
  for (const Slot& slot : slots) {
    if (slot.state.load(std::memory_order_acquire) == Slot::ready) return;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // arrives when this handler returns
}

int occupy_slot(const std::string& path, bool is_directory) {
  if (path.size() >= PATH_MAX) return -1;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    int expected = Slot::free;
    if (!slots[i].state.compare_exchange_strong(expected, Slot::filling)) continue;
    slots[i].is_directory = is_directory;
    std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
    slots[i].state.store(Slot::ready, std::memory_order_release);
    return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

void end_cleanly_on_signals() {
  is_complete = false;
  const auto handle = [](int signal, void (*handler)(int)) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) return;
    struct sigaction action {};
    action.sa_handler = handler;
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  };
  for (const Ending& one : ending) handle(one.signal, remove_and_end);
  handle(SIGPIPE, lose_reader);
}

void output_is_complete() { is_complete = true; }

bool is_output_complete() { return is_complete; }

// A mask of this thread's signals is not enough: another thread would receive them.
DelayedSignals::DelayedSignals() {
  struct sigaction action {};
  action.sa_handler = delay;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < ending.size(); ++i) {
    sigaction(ending[i].signal, nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(ending[i].signal, &action, nullptr);
  }
}

DelayedSignals::~DelayedSignals() {
  for (std::size_t i = 0; i < ending.size(); ++i) sigaction(ending[i].signal, &before_[i], nullptr);
  for (std::size_t i = 0; i < ending.size(); ++i) {
    if (arrived[i].exchange(false)) std::raise(ending[i].signal);
  }
}

namespace detail {

int register_partial(const std::string& path) { return occupy_slot(path, false); }

int register_directory(const std::string& path) { return occupy_slot(path, true); }

void release_partial(int slot) {
  if (slot >= 0) slots[static_cast<std::size_t>(slot)].state.store(Slot::free, std::memory_order_release);
}

}  // namespace detail
}  // namespace furlong
