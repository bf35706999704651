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

constexpr std::array ending{SIGTERM, SIGINT, SIGHUP};
std::array<std::atomic<bool>, ending.size()> arrived;  // while they are delayed
std::atomic<bool> is_complete;                         // the output

void delay(int signal) {
  for (std::size_t i = 0; i < ending.size(); ++i) {
    if (ending[i] == signal) arrived[i] = true;
  }
}

// Calls only async-signal-safe functions (signal-safety(7)).
void remove_and_end(int signal) {
  // A directory can be removed when it is empty.
  for (bool removed = true; removed;) {
    removed = false;
    for (Slot& slot : slots) {
      if (slot.state.load(std::memory_order_acquire) != Slot::ready) continue;
      if ((slot.is_directory ? ::rmdir(slot.path) : ::unlink(slot.path)) == 0) removed = true;
    }
  }
  constexpr std::chrono::milliseconds patience{200};  // a paused reader does not keep the program running
  const bool complete = is_complete;
  static constexpr std::string_view lines[2][3] = {
      {"error: stopped by SIGINT; no partial file is left\n", "error: stopped by SIGTERM; no partial file is left\n",
       "error: stopped by SIGHUP; no partial file is left\n"},
      {"warning: stopped by SIGINT; the output is complete\n", "warning: stopped by SIGTERM; the output is complete\n",
       "warning: stopped by SIGHUP; the output is complete\n"}};
  write_patiently(STDERR_FILENO, lines[complete][signal == SIGINT ? 0 : signal == SIGTERM ? 1 : 2], patience);
  ::_exit(complete ? 0 : 3);
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
  for (const int signal : ending) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

void output_is_complete() { is_complete = true; }

// A mask of this thread's signals is not enough: another thread would receive them.
DelayedSignals::DelayedSignals() {
  struct sigaction action {};
  action.sa_handler = delay;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < ending.size(); ++i) {
    sigaction(ending[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(ending[i], &action, nullptr);
  }
}

DelayedSignals::~DelayedSignals() {
  for (std::size_t i = 0; i < ending.size(); ++i) sigaction(ending[i], &before_[i], nullptr);
  for (std::size_t i = 0; i < ending.size(); ++i) {
    if (arrived[i].exchange(false)) std::raise(ending[i]);
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
