#pragma once
// Internals of the simulator: the machine that runs blocks one after another and interleaves the threads of a block.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/simulator/simulator.h"
#include "framework/simulator/simulator_fiber.h"
#include "framework/simulator/simulator_shared.h"

namespace furlong::simulator {

inline constexpr unsigned max_threads = 1024;  // per block

enum class Status : std::uint8_t { ready, at_barrier, at_warp_operation, done };

struct AsyncCopy {
  void* shared;
  const void* global;
  std::size_t bytes, source_bytes;
  unsigned group;
};

struct Thread {
  uint3 index{};
  unsigned linear = 0;
  Status status = Status::done;
  Fiber* fiber = nullptr;  // null until the thread first runs
  Site site;               // of the operation that the thread waits in
  const char* operation = "";
  std::uint32_t mask = 0;
  std::vector<AsyncCopy> copies;
  unsigned groups = 0;
};

/// Lanes that synchronize under one mask. Data alternates between two buffers: a lane reads one while other lanes
/// already write the other.
struct Group {
  std::uint32_t mask = 0, arrived = 0;
  unsigned generation = 0;
  const char* operation = nullptr;
  Site site;
  std::array<std::array<LaneData, 32>, 2> lanes;
};

struct Warp {
  std::uint32_t exists = 0, alive = 0;
  std::size_t groups_used = 0;
  std::vector<std::unique_ptr<Group>> groups;
};

/// "file:line (function)"
std::string text(const Site& site);
/// "(x, y, z)"
template <class Index>
std::string text_of(const Index& index) {
  return fmt::format("({}, {}, {})", index.x, index.y, index.z);
}

/// Thrown to unwind a thread after its fault has been recorded.
struct KernelAborted {};

/// The single simulated GPU. A launch runs its blocks one after another and interleaves the threads of a block.
class Machine {
 public:
  Machine();
  void run(dim3 grid, dim3 block, std::size_t dynamic_bytes, const Site& launch_site, void (*body)(void*),
           void* context);

  [[noreturn]] void fault(const std::string& what);
  bool barrier(bool predicate, const char* operation, const Site& site);
  const LaneData* exchange(std::uint32_t mask, const char* operation, const void* data, std::size_t bytes,
                           void (*combine)(LaneData*), const Site& site);
  void warp_barrier(std::uint32_t mask, const Site& site);

  Thread& current() { return *current_; }
  Warp& warp() { return warps_[current_->linear / 32]; }
  SharedMemory& shared() { return shared_; }

  Statistics statistics;

 private:
  static void fiber_entry();
  void start_block(std::uint64_t number);
  void finish_block();
  void reset_warps();
  std::uint64_t block_at(std::uint64_t place, std::uint64_t blocks) const;
  void make_fiber();
  Fiber& fiber_for(const Thread& thread);
  void forget_fibers();
  void before_fork();
  void end_thread();
  void next_thread();
  void leave_block();
  void describe_fault(const std::string& what);
  void make_ready(Thread& thread);
  void make_all_ready(unsigned first, unsigned count, std::uint32_t lanes);
  Thread* pick();
  void set_current(Thread& thread);
  void resume(Thread& thread);
  void suspend();
  [[noreturn]] void deadlock();
  Group& group(std::uint32_t mask);
  void* warp_token() { return tokens_ + 16 + 16 * (current_->linear / 32); }

  // The launch
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  Site launch_site_;
  std::string error_;
  Order order_ = Order::forward;
  std::uint64_t random_ = 1;
  // The block
  unsigned n_threads_ = 0, done_ = 0;
  SharedMemory shared_;
  std::array<Thread, max_threads> threads_;
  std::array<Warp, max_threads / 32> warps_;
  Thread* current_ = nullptr;
  std::array<std::uint16_t, 2 * max_threads> ready_;  // a ring; a thread is in it at most once
  unsigned head_ = 0, tail_ = 0;
  // Its barrier
  unsigned arrived_ = 0, generation_ = 0;
  Site barrier_site_;
  std::array<bool, 2> votes_{};
  // Fibers, reused across blocks and launches
  Fiber host_;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Pages> stacks_;
  std::vector<Fiber*> free_fibers_;
  Pages block_pages_;
  std::uint64_t first_fiber_ = 0;
  char plain_tokens_[1024] = {};
  char* tokens_ = plain_tokens_;
  char start_token_ = 0, end_token_ = 0;
};

Machine& machine();

}  // namespace furlong::simulator
