#include "framework/io/interrupted_writes.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>

namespace furlong {
namespace {

// A signal handler may read this memory at any time: it is fixed, and a path is complete before its slot is marked
// ready.
struct Slot {
  enum State : int { free, filling, ready };
  std::atomic<int> state = free;
  char path[PATH_MAX];
};
std::array<Slot, 64> slots;

// Calls only async-signal-safe functions (signal-safety(7)).
void remove_and_end(int signal) {
  for (Slot& slot : slots) {
    if (slot.state.load(std::memory_order_acquire) == Slot::ready) ::unlink(slot.path);
  }
  char line[] = "error: stopped by signal  0; no partial file is left\n";
  char* digits = std::strstr(line, " 0;");
  digits[0] = signal >= 10 ? static_cast<char>('0' + signal / 10) : ' ';
  digits[1] = static_cast<char>('0' + signal % 10);
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line, sizeof(line) - 1);
  ::_exit(3);
}

}  // namespace

void end_cleanly_on_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

namespace detail {

int register_partial(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    int expected = Slot::free;
    if (!slots[i].state.compare_exchange_strong(expected, Slot::filling)) continue;
    std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
    slots[i].state.store(Slot::ready, std::memory_order_release);
    return static_cast<int>(i);
  }
  return -1;
}

void release_partial(int slot) {
  if (slot >= 0) slots[static_cast<std::size_t>(slot)].state.store(Slot::free, std::memory_order_release);
}

}  // namespace detail
}  // namespace furlong
