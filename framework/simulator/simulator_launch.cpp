// Blocks, launches, and the fibers on which threads run.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "framework/simulator/simulator_machine.h"

namespace furlong::simulator {
namespace {

constexpr std::size_t guard_bytes = 4096;
// ThreadSanitizer supports 8128 threads at a time and uses nearly a MiB for each. The number is prime, so that a block
// that reuses fibers of an earlier block gets fibers of other thread indices.
constexpr unsigned max_identities = 2039;

std::size_t stack_bytes() { return under_address_sanitizer() || under_thread_sanitizer() ? 512 * 1024 : 128 * 1024; }

}  // namespace

Machine& machine() {
  static auto* const one = new Machine;  // leaked: launches may come from destructors of static objects
  return *one;
}

Machine::Machine() {
  // ThreadSanitizer forgets all fibers in a forked process, which needs new ones.
  if (under_thread_sanitizer()) pthread_atfork([] { machine().before_fork(); }, nullptr, nullptr);
}

void Machine::before_fork() {
  if (running_ == nullptr) forget_fibers();
}

void Machine::make_fiber() {
  Pages pages(guard_bytes + stack_bytes());
  mprotect(pages.data(), guard_bytes, PROT_NONE);
  auto fiber = std::make_unique<Fiber>();
  fiber->prepare(pages.data() + guard_bytes, stack_bytes(), static_cast<unsigned>(fibers_.size()), fiber_entry);
  if (under_thread_sanitizer()) fiber->make_identity();
  stacks_.push_back(std::move(pages));
  fibers_.push_back(std::move(fiber));
}

Fiber& Machine::fiber_for(const Thread& thread) {
  if (under_thread_sanitizer())
    return *fibers_[(first_fiber_ + thread.linear) % fibers_.size()];  // created with the block
  if (free_fibers_.empty()) {
    make_fiber();
    return *fibers_.back();
  }
  Fiber* fiber = free_fibers_.back();
  free_fibers_.pop_back();
  return *fiber;
}

void Machine::reset_warps() {
  for (unsigned w = 0; w < (n_threads_ + 31) / 32; ++w) {
    const unsigned lanes = std::min(32u, n_threads_ - 32 * w);
    warps_[w].exists = warps_[w].alive = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    for (std::size_t i = 0; i < warps_[w].groups_used; ++i) warps_[w].groups[i]->arrived = 0;
  }
}

void Machine::start_block(std::uint64_t number) {
  const dim3 grid = ::gridDim, block = ::blockDim;
  ::blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                static_cast<unsigned>(number / grid.x / grid.y)};
  head_ = tail_ = arrived_ = done_ = generation_ = 0;
  reset_warps();
  unsigned linear = 0;
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x, ++linear) {
        Thread& thread = threads_[linear];
        thread.index = {x, y, z};
        thread.linear = linear;
        thread.fiber = nullptr;
        thread.copies.clear();
        thread.groups = 0;
      }
    }
  }
  if (under_thread_sanitizer()) {
    // Each block gets fibers, shared memory and tokens that no earlier block of this launch has used. Nothing then
    // orders two blocks, so races between them are reported. (If a launch has more threads than fibers can exist,
    // distant blocks share some.)
    const std::size_t token_bytes = 4096;
    block_pages_ = Pages(token_bytes + SharedMemory::region_bytes);
    tokens_ = block_pages_.data();
    shared_.use_region(tokens_ + token_bytes);
    first_fiber_ += n_threads_;
    while (fibers_.size() < std::min<std::uint64_t>(first_fiber_ + n_threads_, max_identities)) make_fiber();
    release(&start_token_);  // mapping memory counts as a write by this thread
  }
  make_all_ready(0, n_threads_, 0xffffffffu);
}

void Machine::finish_block() {
  statistics.threads += n_threads_;
  ++statistics.blocks;
  statistics.shared_bytes = std::max(statistics.shared_bytes, shared_.used());
  if (error_.empty()) {
    if (const std::string overrun = shared_.overrun(); !overrun.empty()) {
      error_ = fmt::format("the kernel launched at {}: block {}: {}", text(launch_site_), text_of(::blockIdx), overrun);
    }
  }
  shared_.clear();
}

/// After a fault, unfinished threads leave frames on their stacks. Discards all fibers.
void Machine::forget_fibers() {
  free_fibers_.clear();
  if (under_thread_sanitizer()) {
    for (const auto& fiber : fibers_) fiber->destroy_identity();
    fibers_.clear();
    stacks_.clear();
  }
  for (unsigned i = 0; i < fibers_.size(); ++i) {
    fibers_[i]->prepare(stacks_[i].data() + guard_bytes, stack_bytes(), i, fiber_entry);
    free_fibers_.push_back(fibers_[i].get());
  }
}

std::uint64_t Machine::block_at(std::uint64_t place, std::uint64_t blocks) const {
  if (order_ == Order::reverse) return blocks - 1 - place;
  if (order_ != Order::random) return place;
  // A permutation of [0, blocks): a Feistel network over the next power of four, iterated until the result is in range.
  unsigned half_bits = 1;
  while ((std::uint64_t{1} << (2 * half_bits)) < blocks) ++half_bits;
  const std::uint64_t half = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = place >> half_bits, right = place & half;
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::uint64_t mixed = (right + round * 0x9E3779B97F4A7C15ull + options().seed) * 0xBF58476D1CE4E5B9ull;
      mixed ^= mixed >> 29;
      left = std::exchange(right, left ^ (mixed & half));
    }
    place = left << half_bits | right;
  } while (place >= blocks);
  return place;
}

void Machine::run(dim3 grid, dim3 block, std::size_t dynamic_bytes, const Site& launch_site, void (*body)(void*),
                  void* context) {
  static std::mutex one_at_a_time;
  static thread_local bool launching = false;
  require(!launching, "{}: a kernel was launched from inside a kernel", text(launch_site));
  const std::lock_guard lock(one_at_a_time);
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z,
                      blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  if (blocks == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || threads == 0 ||
      threads > max_threads) {
    throw KernelFault("{}: no device supports a grid of {} blocks of {} threads", text(launch_site), text_of(grid),
                      text_of(block));
  }
  if (dynamic_bytes > options().shared_limit) {
    throw KernelFault("{}: the launch requests {} bytes of dynamic shared memory; the limit per block is {}",
                      text(launch_site), dynamic_bytes, options().shared_limit);
  }
  launching = true;
  ++statistics.launches;
  launch_site_ = launch_site;
  body_ = body;
  context_ = context;
  n_threads_ = static_cast<unsigned>(threads);
  ::gridDim = grid;
  ::blockDim = block;
  order_ = options().order;
  random_ = options().seed * 0x9E3779B97F4A7C15ull | 1u;
  error_.clear();
  new (&host_) Fiber;  // stacks differ between the host's threads
  host_.adopt_thread();
  running_ = &host_;
  first_fiber_ = 0;
  for (Warp& entry : warps_) entry.groups_used = 0;
  for (std::uint64_t place = 0; place < blocks && error_.empty(); ++place) {
    start_block(block_at(place, blocks));
    shared_.begin(dynamic_bytes, options().shared_limit);
    resume(*pick());
    finish_block();
  }
  running_ = nullptr;
  launching = false;
  if (under_thread_sanitizer()) {
    acquire(&end_token_);  // only at the end, so that races between blocks are reported
    block_pages_ = Pages();
  }
  if (!error_.empty()) {
    forget_fibers();
    throw KernelFault("{}", error_);
  }
}

}  // namespace furlong::simulator
