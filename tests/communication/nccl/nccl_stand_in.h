#pragma once
// Communicator of the NCCL stand-in library: shared memory of its ranks, and the requested fault.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "framework/cuda/engine/nccl.h"

namespace furlong::nccl {

inline constexpr int most_ranks = 8;
inline constexpr std::size_t slot_bytes = 4 << 20, message_bytes = 1 << 20;  // unused pages take no memory
inline constexpr Result system_error = 2, internal_error = 3, invalid_argument = 4, invalid_usage = 5, remote_error = 6;

/// Memory shared by all ranks. Counters only increase. The two slots alternate: a rank writes a slot again only after
/// all ranks have written the other slot, and thus have read this one.
struct Shared {
  std::atomic<int> attached{0};
  std::atomic<std::uint64_t> written[most_ranks];
  struct Mailbox {
    std::atomic<std::uint64_t> written{0}, read{0};
    char bytes[message_bytes];
  } mailboxes[most_ranks][most_ranks];  // from, to
  char slots[2][most_ranks][slot_bytes];
};

/// "operation 3 hangs" -> {"operation", 3, "hangs"}; "init hangs" -> {"init", 0, "hangs"}.
struct Fault {
  std::string where, what;
  int number = 0;
  static Fault asked_for() {
    Fault fault;
    const char* text = std::getenv("FURLONG_NCCL_STAND_IN_FAULT");
    char where[32] = "", what[32] = "";
    if (text == nullptr) return fault;
    if (std::sscanf(text, "%31s %d %31[a-z ]", where, &fault.number, what) != 3)
      std::sscanf(text, "%31s %31[a-z ]", where, what);
    fault.where = where;
    fault.what = what;
    return fault;
  }
  bool is(const char* at, const char* does, int count = 0) const {
    return where == at && what == does && number == count;
  }
};

struct Aborted {};

class Pause {
 public:
  void operator()() {
    if (++count_ < 20) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int count_ = 0;
};

/// Implements ncclComm. Like NCCL, it must be called by one thread at a time.
struct Communicator {
  int rank = 0, size = 1;
  Shared* shared = nullptr;
  Fault fault = Fault::asked_for();
  std::atomic<bool> aborted = false, broken = false;
  std::atomic<bool> in_call = false;
  bool connected = false, finalized = false;
  std::uint64_t exchanges = 0;
  std::vector<std::uint64_t> sent = std::vector<std::uint64_t>(most_ranks), received = sent;
  int operations = 0;                // number of calls
  std::atomic<int> under_way = 0;    // operations on streams
  std::function<void()> to_enqueue;  // the call in progress, enqueued at the second query of the state
  int asked = 0;                     // number of queries

  template <class Condition>
  void wait_until(const Condition& condition) const {
    for (Pause pause; !condition(); pause())
      if (aborted) throw Aborted{};
  }

  /// Gathers `bytes` bytes (at most a slot) of every rank: calls use(rank, its bytes) for each.
  template <class Use>
  void exchange(const void* own, std::size_t bytes, const Use& use) {
    const std::uint64_t number = ++exchanges;
    auto& slots = shared->slots[number % 2];
    std::memcpy(slots[rank], own, bytes);
    shared->written[rank] = number;
    for (int other = 0; other < size; ++other) {
      wait_until([&] { return shared->written[other] >= number; });
      use(other, static_cast<const char*>(slots[other]));
    }
  }
};

}  // namespace furlong::nccl
