#include "framework/simulator/simulator_machine.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace furlong::simulator {
namespace {

/// Compares literals, which are usually the same object.
bool same(const char* a, const char* b) { return a == b || std::string_view(a) == b; }
bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && same(a.file_name(), b.file_name());
}

/// Copies 8 bytes at a time, hidden from ThreadSanitizer.
void copy_untracked(void* target, const void* source, std::size_t bytes) {
  using Word [[gnu::may_alias]] = std::uint64_t;
  auto* to = static_cast<volatile Word*>(target);
  const auto* from = static_cast<const Word*>(source);
  for (std::size_t i = 0; i < bytes / 8; ++i) to[i] = from[i];
}

}  // namespace

std::string text(const Site& site) {
  return fmt::format("{}:{} ({})", site.file_name(), site.line(), site.function_name());
}

// ---- Scheduling ----

void Machine::make_ready(Thread& thread) {
  thread.status = Status::ready;
  ready_[tail_++ % ready_.size()] = static_cast<std::uint16_t>(thread.linear);
}

/// Makes threads first..first+count-1 ready, in the configured order. For a warp, only those in `lanes`.
void Machine::make_all_ready(unsigned first, unsigned count, std::uint32_t lanes) {
  const bool backwards = order_ == Order::reverse || order_ == Order::warp_first;  // warp_first runs the last one first
  for (unsigned i = 0; i < count; ++i) {
    const unsigned place = backwards ? count - 1 - i : i;
    if (count > 32 || (lanes >> place & 1u) != 0) make_ready(threads_[first + place]);
  }
}

Thread* Machine::pick() {
  if (head_ == tail_) return nullptr;
  const auto at = [this](unsigned place) -> std::uint16_t& { return ready_[place % ready_.size()]; };
  if (order_ == Order::warp_first) return &threads_[at(--tail_)];
  if (order_ == Order::random) {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;  // xorshift64 (Marsaglia, 2003)
    std::swap(at(head_), at(head_ + static_cast<unsigned>((random_ >> 16) % (tail_ - head_))));
  }
  return &threads_[at(head_++)];
}

void Machine::set_current(Thread& thread) {
  current_ = &thread;
  ::threadIdx = thread.index;
  current_lane = static_cast<int>(thread.linear & 31);
  existing_lanes = warp().exists;
}

void Machine::resume(Thread& thread) {
  set_current(thread);
  if (thread.fiber == nullptr) thread.fiber = &fiber_for(thread);
  Fiber& from = *running_;
  running_ = thread.fiber;
  ++statistics.switches;
  Fiber::switch_to(from, *thread.fiber);
}

/// Runs other threads: the current thread waits, or is last in the queue.
void Machine::suspend() {
  Thread* next = pick();
  if (next == nullptr) deadlock();
  if (next != current_) resume(*next);
}

void Machine::fiber_entry() {
  Fiber::begin();
  Machine& self = machine();
  for (;;) {
    acquire(&self.start_token_);
    bool stopped = false;
    try {
      self.body_(self.context_);
      self.end_thread();
    } catch (const KernelAborted&) {
      stopped = true;
    } catch (const std::exception& exception) {
      self.describe_fault(fmt::format("the kernel threw an exception: {}", exception.what()));
      stopped = true;
    } catch (...) {
      self.describe_fault("the kernel threw an exception");
      stopped = true;
    }
    release(&self.end_token_);
    if (stopped) {
      self.leave_block();
    } else {
      self.next_thread();
    }
  }
}

void Machine::end_thread() {
  Thread& self = *current_;
  if (!self.copies.empty()) fault("the thread exits without waiting for its copies (cp.async)");
  self.status = Status::done;
  ++done_;
  warp().alive &= ~(1u << (self.linear & 31));
  if (head_ == tail_ && done_ < n_threads_) deadlock();
}

/// Reuses the fiber of an exited thread for one that has not started, without a switch, or frees the fiber.
void Machine::next_thread() {
  Thread* next = pick();
  if (next == nullptr) {
    if (!under_thread_sanitizer()) free_fibers_.push_back(running_);
    leave_block();
  } else if (under_thread_sanitizer()) {
    resume(*next);
  } else if (next->fiber == nullptr) {
    next->fiber = running_;
    set_current(*next);
  } else {
    free_fibers_.push_back(running_);
    resume(*next);
  }
}

/// Returns to the launch: the block has finished, or one of its threads has a fault.
void Machine::leave_block() {
  Fiber& from = *running_;
  running_ = &host_;
  Fiber::switch_to(from, host_);
}

void Machine::describe_fault(const std::string& what) {
  const TsanIgnore ignore;
  error_ = fmt::format("the kernel launched at {}: block {}, thread {}: {}", text(launch_site_), text_of(::blockIdx),
                       text_of(current_->index), what);
}

void Machine::fault(const std::string& what) {
  describe_fault(what);
  throw KernelAborted{};
}

void Machine::deadlock() {
  std::string waits;
  unsigned kinds = 0;
  for (unsigned i = 0; i < n_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.status != Status::at_barrier && thread.status != Status::at_warp_operation) continue;
    const auto alike = [&](const Thread& other) {
      return other.status == thread.status && other.mask == thread.mask && same(other.site, thread.site);
    };
    const auto first = threads_.begin(), end = first + n_threads_;
    if (std::find_if(first, first + i, alike) != first + i || ++kinds > 6) continue;
    waits += fmt::format("; {} threads, the first of them {}, wait in {} at {}", std::count_if(first, end, alike),
                         text_of(thread.index), thread.operation, text(thread.site));
    if (thread.status == Status::at_warp_operation) waits += fmt::format(" for lanes {:#010x}", thread.mask);
  }
  fault(fmt::format("deadlock: no thread can continue; {} of {} threads have exited{}", done_, n_threads_, waits));
}

// ---- Barriers and warps ----

bool Machine::barrier(bool predicate, const char* operation, const Site& site) {
  Thread& self = *current_;
  self.site = site;
  self.operation = operation;
  self.mask = 0;
  if (done_ > 0) fault(fmt::format("{} at {} after {} threads of the block have exited", operation, text(site), done_));
  const unsigned parity = generation_ & 1u;
  if (arrived_ == 0) {
    barrier_site_ = site;
    votes_[parity] = false;
  } else if (!same(barrier_site_, site)) {
    fault(fmt::format("divergent barrier: this thread is in {} at {}, {} others wait at {}", operation, text(site),
                      arrived_, text(barrier_site_)));
  }
  votes_[parity] = votes_[parity] || predicate;
  // A token is reused only after all threads have passed the barrier in between.
  release(tokens_ + 8 * parity);
  self.status = Status::at_barrier;
  if (++arrived_ == n_threads_) {
    arrived_ = 0;
    ++generation_;
    make_all_ready(0, n_threads_, 0xffffffffu);
  }
  suspend();
  acquire(tokens_ + 8 * parity);
  return votes_[parity];
}

Group& Machine::group(std::uint32_t mask) {
  Warp& owner = warp();
  for (std::size_t i = 0; i < owner.groups_used; ++i) {
    if (owner.groups[i]->mask == mask) return *owner.groups[i];
  }
  const TsanIgnore ignore;
  if (owner.groups_used == owner.groups.size()) owner.groups.push_back(std::make_unique<Group>());
  Group& fresh = *owner.groups[owner.groups_used++];
  fresh.mask = mask;
  fresh.arrived = 0;
  std::fill_n(reinterpret_cast<unsigned char*>(&fresh.lanes), sizeof(fresh.lanes), static_cast<unsigned char>(0xff));
  return fresh;
}

const LaneData* Machine::exchange(std::uint32_t mask, const char* operation, const void* data, std::size_t bytes,
                                  void (*combine)(LaneData*), const Site& site) {
  Thread& self = *current_;
  Warp& owner = warp();
  const unsigned lane = self.linear & 31;
  self.site = site;
  self.operation = operation;
  self.mask = mask;
  if ((mask >> lane & 1u) == 0)
    fault(fmt::format("{} at {}: lane {} is not in its own mask {:#010x}", operation, text(site), lane, mask));
  const std::uint32_t needed = mask & owner.exists;
  if ((needed & ~owner.alive) != 0) {
    fault(fmt::format("{} at {}: mask {:#010x} includes lanes that have exited ({:#010x})", operation, text(site), mask,
                      needed & ~owner.alive));
  }
  Group& waiting = group(mask);
  if (waiting.arrived == 0) {
    waiting.operation = operation;
    waiting.site = site;
  } else if (!same(waiting.site, site) || !same(waiting.operation, operation)) {
    fault(fmt::format("divergent warp: this lane is in {} at {}, lanes {:#010x} wait in {} at {}", operation,
                      text(site), waiting.arrived, waiting.operation, text(waiting.site)));
  }
  auto& lanes = waiting.lanes[waiting.generation & 1u];
  copy_untracked(lanes[lane].bytes, data, bytes);
  waiting.arrived |= 1u << lane;
  self.status = Status::at_warp_operation;
  if (waiting.arrived == needed) {
    waiting.arrived = 0;
    ++waiting.generation;
    if (combine != nullptr) combine(lanes.data());
    make_all_ready(self.linear - lane, 32, needed);
  }
  suspend();
  return lanes.data();
}

void Machine::warp_barrier(std::uint32_t mask, const Site& site) {
  if (!under_thread_sanitizer()) {
    exchange(mask, "__syncwarp", nullptr, 0, nullptr, site);
    return;
  }
  // The generation distinguishes the tokens. With one token, a lane that is ahead would release to a lane that has not
  // yet acquired.
  char* token = static_cast<char*>(warp_token()) + 8 * (group(mask).generation & 1u);
  release(token);
  exchange(mask, "__syncwarp", nullptr, 0, nullptr, site);
  acquire(token);
}

}  // namespace furlong::simulator
